# SPDX-License-Identifier: Apache-2.0
"""Views as numbers, which calls on tensors of the same shapes take again: to slice a tensor takes some microseconds."""

from typing import NamedTuple

from torch import Tensor


class View(NamedTuple):
    """Of a tensor that comes anew in each call, with the same shape and strides."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """Of its first element, from the tensor's own."""

    def of(self, x: Tensor) -> Tensor:
        return x.as_strided(self.shape, self.strides, x.storage_offset() + self.offset)


def view_of(part: Tensor, x: Tensor) -> View:
    """How `part`, a view of x, lies in it."""
    return View(tuple(part.shape), part.stride(), part.storage_offset() - x.storage_offset())
