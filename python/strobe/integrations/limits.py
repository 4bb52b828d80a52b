# SPDX-License-Identifier: Apache-2.0
"""What Strobe's engines read of a serving engine's caches, and the reason where they do not."""

import torch

_MOST_COLUMNS = 512
_MOST_FLOAT8_COLUMNS_OF_GPUS = 256  # wider ones are converted, which takes memory as for the longest sequences
_MOST_FLOAT32_COLUMNS_OF_GPUS = 128


def head_size_reason(head_size: int, *, on_gpu: bool) -> str | None:
    """Why no engine reads a cache of heads of this size; None where one does."""
    if head_size > _MOST_COLUMNS:
        return f"head_size is {head_size}: it must be at most {_MOST_COLUMNS}"
    if on_gpu and head_size % 8 != 0:
        return f"head_size is {head_size}: on a GPU it must be a multiple of 8"
    return None


def combination_reason(
    head_size: int,
    dtype: torch.dtype,
    *,
    is_float8: bool,
    on_gpu: bool,
    row_invariant: bool,
    capability: tuple[int, int] | None = None,
) -> str | None:
    """Why engines serve each of these alone and not all of them together. dtype is of the queries, is_float8 says that
    the cache is stored as float8_e4m3fn, capability is the GPU's."""
    if not on_gpu:
        return None
    if dtype == torch.float32 and head_size > _MOST_FLOAT32_COLUMNS_OF_GPUS:
        return f"head_size is {head_size}: in float32 on a GPU it must be at most {_MOST_FLOAT32_COLUMNS_OF_GPUS}"
    if is_float8:
        if dtype == torch.float32:
            return "an fp8 cache beside float32 is not supported on a GPU: it must be beside float16 or bfloat16"
        if head_size > _MOST_FLOAT8_COLUMNS_OF_GPUS:
            most = _MOST_FLOAT8_COLUMNS_OF_GPUS
            return f"head_size is {head_size}: with an fp8 cache on a GPU it must be at most {most}"
        if head_size % 16 != 0:
            return f"head_size is {head_size}: with an fp8 cache on a GPU it must be a multiple of 16"
        if row_invariant and capability != (9, 0):  # others convert caches for the longest sequences before each call
            return "batch invariance with an fp8 cache on a GPU needs compute capability 9.0"
    return None
