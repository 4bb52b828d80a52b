# SPDX-License-Identifier: Apache-2.0
"""What Strobe's engines serve of vLLM's configurations, and the reason where they do not."""

import torch
from strobe.integrations import limits

FLOAT8_CACHES = ("fp8", "fp8_e4m3")
_CACHES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
CACHE_DTYPES = ("auto", *_CACHES, *FLOAT8_CACHES)

head_size_reason = limits.head_size_reason


def cache_dtype_reason(cache_dtype: str | None) -> str | None:
    """Why no engine reads a cache stored like this."""
    if cache_dtype is None or cache_dtype in CACHE_DTYPES:
        return None
    return f"kv_cache_dtype is {cache_dtype}: it must be one of {', '.join(CACHE_DTYPES)}"


def shards_reason(options: dict[str, bool]) -> str | None:
    """Why a layer's keys cannot be shared among ranks; by name, whether the layer has what needs all of them."""
    named = [name for name, is_given in options.items() if is_given]
    if not named:
        return None
    return f"decode context parallelism is on with {named[0]}, which needs all keys in one cache: turn one of them off"


def combination_reason(
    head_size: int, dtype: torch.dtype, cache_dtype: str | None, *, on_gpu: bool, row_invariant: bool
) -> str | None:
    """Why engines serve each of these alone and not all of them together."""
    stored = _CACHES.get(cache_dtype or "auto")
    if stored not in (None, dtype):
        return f"kv_cache_dtype is {cache_dtype} and the model's {dtype}: they must be the same, or the cache fp8"
    is_float8 = cache_dtype in FLOAT8_CACHES
    return limits.combination_reason(head_size, dtype, is_float8=is_float8, on_gpu=on_gpu, row_invariant=row_invariant)
