# SPDX-License-Identifier: Apache-2.0
"""What Strobe's engines serve of vLLM's configurations, and the reason where they do not."""

import torch
from strobe.integrations import limits
from torch import Tensor

FLOAT8_CACHES = ("fp8", "fp8_e4m3")
_CACHES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
CACHE_DTYPES = ("auto", *_CACHES, *FLOAT8_CACHES)

MOST_QUERIES_OVER_SHARDS = 64
"""Of a request, where ranks share keys: the engines' most under a tree mask."""

_FLOAT8_LATENT_COLUMNS = 576  # 512 and 64 that are rotated
_MOST_FLOAT8_HEADS = 128

head_size_reason = limits.head_size_reason


def cache_dtype_reason(cache_dtype: str | None) -> str | None:
    """Why no engine reads a cache stored like this."""
    if cache_dtype is None or cache_dtype in CACHE_DTYPES:
        return None
    return f"kv_cache_dtype is {cache_dtype}: it must be one of {', '.join(CACHE_DTYPES)}"


def conversion_reason(dtype: torch.dtype, cache_dtype: str | None) -> str | None:
    """Why a cache of 16 bits is not read by queries of dtype."""
    stored = _CACHES.get(cache_dtype or "auto")
    if stored in (None, dtype):
        return None
    return f"kv_cache_dtype is {cache_dtype} and the model's {dtype}: they must be the same, or the cache fp8"


def rswa_reason(window: int | None) -> str | None:
    """Why a model with reference sliding windows is not served, which see a prompt and the last generated tokens."""
    return None if window is None else f"the model has R-SWA, rswa_window is {window}: it is not supported"


def shards_reason(options: dict[str, bool]) -> str | None:
    """Why a layer's keys cannot be shared among ranks; by name, whether the layer has what needs all of them."""
    named = _first_given(options)
    if named is None:
        return None
    return f"decode context parallelism is on with {named}, which needs all keys in one cache: turn one of them off"


def combination_reason(
    head_size: int,
    dtype: torch.dtype,
    cache_dtype: str | None,
    *,
    on_gpu: bool,
    row_invariant: bool,
    capability: tuple[int, int] | None = None,
) -> str | None:
    """Why engines serve each of these alone and not all of them together."""
    is_float8 = cache_dtype in FLOAT8_CACHES
    return conversion_reason(dtype, cache_dtype) or limits.combination_reason(
        head_size, dtype, is_float8=is_float8, on_gpu=on_gpu, row_invariant=row_invariant, capability=capability
    )


def mla_layer_reason(options: dict[str, bool]) -> str | None:
    """Why a layer of MLA is not served; by name, whether it has what latent attention or vLLM's chunks lack."""
    named = _first_given(options)
    return None if named is None else f"a layer of MLA has {named}, which is not supported"


def mla_combination_reason(dtype: torch.dtype, cache_dtype: str | None, *, on_gpu: bool) -> str | None:
    """Why latents are served of each of these alone and not of all of them together."""
    if on_gpu and dtype == torch.float32:
        return "dtype is torch.float32: with MLA on a GPU it must be torch.float16 or torch.bfloat16"
    return cache_dtype_reason(cache_dtype) or conversion_reason(dtype, cache_dtype)


def mla_float8_reason(cache_dtype: str | None, head_size: int, capability: tuple[int, int]) -> str | None:
    """Why a GPU does not read latents of 8 bits where they lie.

    Rows that it does not read there are converted before a call, which takes memory as for the longest sequences.
    """
    if cache_dtype not in FLOAT8_CACHES:
        return None
    if capability != (9, 0):
        return f"kv_cache_dtype is {cache_dtype}: with MLA on a GPU it needs compute capability 9.0"
    if head_size != _FLOAT8_LATENT_COLUMNS:
        most = _FLOAT8_LATENT_COLUMNS
        return f"kv_cache_dtype is {cache_dtype} and head_size {head_size}: with MLA on a GPU it must be {most}"
    return None


def mla_decodes_reason(cache_dtype: str, heads: int, queries: int) -> str | None:
    """The same of decodes with so many heads, of all ranks that share keys, and with up to so many queries.

    A row's readers must be one tile of query rows or two of heads, without a mask.
    """
    if cache_dtype not in FLOAT8_CACHES:
        return None
    if queries > 1:
        return (
            f"kv_cache_dtype is {cache_dtype} and decodes have up to {queries} queries: with MLA on a GPU they must "
            "have one, turn speculative decoding off"
        )
    if heads > _MOST_FLOAT8_HEADS or heads.bit_count() != 1:
        return (
            f"kv_cache_dtype is {cache_dtype} and decodes have {heads} heads: with MLA on a GPU it must be a power of "
            f"two up to {_MOST_FLOAT8_HEADS}"
        )
    return None


def reject_scaled_output(*scales: Tensor | None) -> None:
    """NotImplementedError where vLLM wants its output quantised, which no backend here supports."""
    if any(scale is not None for scale in scales):
        raise NotImplementedError("output_scale is given: outputs of 8 bits or less are not supported")


def _first_given(options: dict[str, bool]) -> str | None:
    return next((name for name, is_given in options.items() if is_given), None)
