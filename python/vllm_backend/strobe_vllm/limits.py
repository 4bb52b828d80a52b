# SPDX-License-Identifier: Apache-2.0
"""What Strobe's engines serve of vLLM's configurations, and the reason where they do not."""

import torch

FLOAT8_CACHES = ("fp8", "fp8_e4m3")
_CACHES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
CACHE_DTYPES = ("auto", *_CACHES, *FLOAT8_CACHES)

_MOST_COLUMNS_OF_CPUS = 512
_MOST_COLUMNS_OF_GPUS = 256
_MOST_FLOAT32_COLUMNS_OF_GPUS = 128


def head_size_reason(head_size: int, *, on_gpu: bool) -> str | None:
    """Why no engine reads a cache of heads of this size; None where one does."""
    if on_gpu and (head_size > _MOST_COLUMNS_OF_GPUS or head_size % 8 != 0):
        return f"head_size is {head_size}: on a GPU it must be a multiple of 8 up to {_MOST_COLUMNS_OF_GPUS}"
    if head_size > _MOST_COLUMNS_OF_CPUS:
        return f"head_size is {head_size}: it must be at most {_MOST_COLUMNS_OF_CPUS}"
    return None


def cache_dtype_reason(cache_dtype: str | None) -> str | None:
    """Why no engine reads a cache stored like this."""
    if cache_dtype is None or cache_dtype in CACHE_DTYPES:
        return None
    return f"kv_cache_dtype is {cache_dtype}: it must be one of {', '.join(CACHE_DTYPES)}"


def combination_reason(
    head_size: int, dtype: torch.dtype, cache_dtype: str | None, *, on_gpu: bool, row_invariant: bool
) -> str | None:
    """Why engines serve each of these alone and not all of them together."""
    stored = _CACHES.get(cache_dtype or "auto")
    if stored not in (None, dtype):
        return f"kv_cache_dtype is {cache_dtype} and the model's {dtype}: they must be the same, or the cache fp8"
    if not on_gpu:
        return None
    if dtype == torch.float32 and head_size > _MOST_FLOAT32_COLUMNS_OF_GPUS:
        return f"head_size is {head_size}: in float32 on a GPU it must be at most {_MOST_FLOAT32_COLUMNS_OF_GPUS}"
    if cache_dtype in FLOAT8_CACHES:
        if head_size % 16 != 0:
            return f"head_size is {head_size}: with an fp8 cache on a GPU it must be a multiple of 16"
        if row_invariant:
            return "batch invariance is not supported with an fp8 cache on a GPU"
    return None
