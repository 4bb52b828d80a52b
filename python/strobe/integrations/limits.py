# SPDX-License-Identifier: Apache-2.0
"""What Strobe's engines read of caches, and the reason where they do not.

A capability is the compute capability (major, minor) of the GPU, None on the CPU.
"""

import functools
from typing import NamedTuple

import torch

_HOPPER = (9, 0)
_MOST_FLOAT32_COLUMNS_OF_GPUS = 128


class Columns(NamedTuple):
    """The most columns that an engine takes of q and k, and of v."""

    head_dim: int
    head_dim_v: int


_NARROW = Columns(256, 256)  # what every kernel for GPUs takes, of 8 bits and in row-invariant calls, too


def most_columns(capability: tuple[int, int] | None) -> Columns:
    return Columns(576, 512) if capability in (None, _HOPPER) else _NARROW


@functools.cache
def capability_of(device: torch.device) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def is_hopper(device: torch.device) -> bool:
    return capability_of(device) == _HOPPER


def head_size_reason(head_size: int, capability: tuple[int, int] | None) -> str | None:
    """Why no engine reads a cache of heads of this size; None where one does."""
    most = most_columns(capability).head_dim_v
    if capability is None:
        return f"head_size is {head_size}: it must be at most {most}" if head_size > most else None
    if head_size > most or head_size % 8 != 0:
        return f"head_size is {head_size}: on this GPU it must be a multiple of 8 up to {most}"
    return None


def combination_reason(
    head_size: int, dtype: torch.dtype, capability: tuple[int, int] | None, *, is_float8: bool, row_invariant: bool
) -> str | None:
    """Why engines serve each of these alone and not all of them together. dtype is of the queries, is_float8 says that
    the cache is stored as float8_e4m3fn."""
    if capability is None:
        return None
    if dtype == torch.float32 and head_size > _MOST_FLOAT32_COLUMNS_OF_GPUS:
        return f"head_size is {head_size}: in float32 on a GPU it must be at most {_MOST_FLOAT32_COLUMNS_OF_GPUS}"
    if head_size > _NARROW.head_dim_v and (is_float8 or row_invariant):
        asked = "an fp8 cache" if is_float8 else "batch invariance"
        return f"head_size is {head_size}: with {asked} on a GPU it must be at most {_NARROW.head_dim_v}"
    if is_float8:
        if head_size % 16 != 0:
            return f"head_size is {head_size}: with an fp8 cache on a GPU it must be a multiple of 16"
        if row_invariant:
            return "batch invariance is not supported with an fp8 cache on a GPU"
    return None
