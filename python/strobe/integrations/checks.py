# SPDX-License-Identifier: Apache-2.0
"""What FlashAttention's calls refuse, and the drop-ins with them: nothing is ignored, and no number is converted.

All of it is known without looking into a tensor, so that no call waits for a GPU. What Strobe does beside
FlashAttention (other dtypes, head_dims, page sizes and combinations) is computed and not refused.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def check_int32(**indices: Tensor | None) -> None:
    """ValueError for indices or lengths of another dtype: a conversion would change numbers."""
    for name, index in indices.items():
        if index is not None and index.dtype != torch.int32:
            raise ValueError(f"{name} is {dtype_name(index)}: it must be int32")


def check_float32(**tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != torch.float32:
            raise ValueError(f"{name} is {dtype_name(tensor)}: it must be float32")


def check_as(like: str, wanted: Tensor, **tensors: Tensor | None) -> None:
    """ValueError for a tensor whose dtype is not that of ``wanted``, which is called ``like``."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != wanted.dtype:
            raise ValueError(f"{name} is {dtype_name(tensor)}: it must be {dtype_name(wanted)}, as {like} is")


def check_shape(name: str, tensor: Tensor | None, wanted: Sequence[int], meaning: str) -> None:
    if tensor is not None and tuple(tensor.shape) != tuple(wanted):
        raise ValueError(f"{name} has shape {list(tensor.shape)}: it must be {list(wanted)} {meaning}")


def check_pair(**pair: Any) -> None:
    """ValueError if one of the two is given and not the other."""
    given = [name for name, value in pair.items() if value is not None]
    if len(given) == 1:
        missing = next(name for name in pair if name not in given)
        raise ValueError(f"{given[0]} is given without {missing}: give both or neither")


def check_scales(batch: int, heads_kv: int, **scales: Tensor | None) -> None:
    """ValueError for scales that are not one of each sequence and key head."""
    for name, scale in scales.items():
        check_float32(**{name: scale})
        check_shape(name, scale, (batch, heads_kv), "[batch, heads_kv]")


def check_given(**tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is None:
            raise ValueError(f"{name} is None: give the cumulative lengths of the sequences, [batch + 1] int32")


def check_packed(name: str, tensor: Tensor, axis: int, count: int) -> None:
    """ValueError unless ``count`` tensors lie side by side along the axis."""
    if not -tensor.dim() <= axis < tensor.dim() or tensor.shape[axis] != count:
        raise ValueError(f"{name} has shape {list(tensor.shape)}: axis {axis} must have {count} elements")


def whole(name: str, value: Any) -> int:
    """An integer, or a tensor of one; TypeError for numbers that would lose their fraction."""
    is_real = isinstance(value, (bool, float, str)) or (isinstance(value, Tensor) and value.is_floating_point())
    if is_real or not hasattr(value, "__int__"):
        raise TypeError(f"{name} is of type {type(value).__name__}: it must be an integer")
    return int(value)


def max_seqlen(side: str, cu_seqlens: Tensor | None, longest: Any) -> int | None:
    """``longest`` of a packed side, q or k, with which it must come; None of a batched one, where it says nothing."""
    if cu_seqlens is None:
        return None
    if longest is None:
        raise ValueError(f"cu_seqlens_{side} is given without max_seqlen_{side}: give both or neither")
    return whole(f"max_seqlen_{side}", longest)
