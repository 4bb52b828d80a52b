# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-2's functions, with their signatures and return values."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from strobe.integrations.checks import check_given, check_int32, check_packed
from strobe.integrations.flash_attention import (
    given_lengths,
    options_of,
    padded_attention,
)
from strobe.integrations.kv_cache import Cache, with_cache
from torch import Tensor

from flash_attn._passes import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
    paged_attention,
)
from flash_attn._probabilities import signed_probabilities

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "flash_attn_func",
    "flash_attn_gpu",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

Window = Any


def _attention(
    q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], return_attn_probs: bool, **lengths: Any
) -> Any:
    """out, or (out, lse, None) with return_attn_probs: but for tests of dropout no probabilities are kept."""
    if not return_attn_probs:
        return padded_attention(q, k, v, **options, **lengths)
    if "dropout" not in options:
        return (*padded_attention(q, k, v, return_lse=True, **options, **lengths), None)
    options["seed"], options["offset"] = torch.randint(2**63 - 1, (2,)).tolist()
    result = padded_attention(q, k, v, return_lse=True, **options, **lengths)
    return (*result, signed_probabilities(q, k, lengths, **options))


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    options = options_of(
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        deterministic=deterministic,
        dropout_p=dropout_p,
        alibi_slopes=alibi_slopes,
    )
    return _attention(q, k, v, options, return_attn_probs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **options: Any) -> Any:
    """kv [batch, seqlen_k, 2, heads_kv, head_dim]; the rest as flash_attn_func."""
    check_packed("kv", kv, 2, 2)
    return flash_attn_func(q, *kv.unbind(dim=2), *arguments, **options)


def flash_attn_qkvpacked_func(qkv: Tensor, *arguments: Any, **options: Any) -> Any:
    """qkv [batch, seqlen, 3, heads, head_dim]; the rest as flash_attn_func."""
    check_packed("qkv", qkv, 2, 3)
    return flash_attn_func(*qkv.unbind(dim=2), *arguments, **options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """out, or (out, lse, None) with return_attn_probs. With block_table [batch, max_pages] k and v are pages
    [num_pages, page_size, heads_kv, head_dim], and cu_seqlens_k gives the sequences' numbers of keys; without gradients
    then."""
    check_given(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    options = options_of(
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        deterministic=deterministic,
        dropout_p=dropout_p,
        alibi_slopes=alibi_slopes,
    )
    if block_table is not None:
        check_int32(cu_seqlens_k=cu_seqlens_k)
        cache = Cache(k, v, block_table)
        result = paged_attention(q, cache, cu_seqlens_k.diff(), cu_seqlens_q, max_seqlen_q, options)
        return (*result, None) if return_attn_probs else result[0]
    packing = given_lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _attention(q, k, v, options, return_attn_probs, **packing)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **options: Any) -> Any:
    """kv [total_k, 2, heads_kv, head_dim]; the rest as flash_attn_varlen_func."""
    check_packed("kv", kv, 1, 2)
    return flash_attn_varlen_func(q, *kv.unbind(dim=1), *arguments, **options)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *arguments: Any, **options: Any
) -> Any:
    """qkv [total, 3, heads, head_dim]; the rest as flash_attn_varlen_func."""
    check_packed("qkv", qkv, 1, 3)
    return flash_attn_varlen_func(
        *qkv.unbind(dim=1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *arguments, **options
    )


def _check_room(cache: Cache, cache_seqlens: Tensor | int | None, new: int) -> None:
    """RuntimeError where pages are too few for the longest sequence and its `new` rows."""
    if cache.page_table is None or cache_seqlens is None:
        return
    if isinstance(cache_seqlens, Tensor):
        if not cache_seqlens.numel() or (cache_seqlens.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        cache_seqlens = int(cache_seqlens.max())
    if cache_seqlens + new > cache.capacity:
        columns = cache.page_table.shape[1]
        raise RuntimeError(
            f"a sequence has {cache_seqlens + new} rows with its new ones, but block_table has {columns} pages of "
            f"{cache.k.shape[1]} rows for it: give block_table more columns"
        )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | int | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """out, or (out, lse) with return_softmax_lse. Writes k and v to the cache, which may be pages of any size.

    RuntimeError where a sequence is longer than its row of block_table: as in flash-attn the call waits for the GPU to
    know, but not while a CUDA graph is captured.
    """
    cache = Cache(k_cache, v_cache, block_table, cache_batch_idx, cache_leftpad)
    _check_room(cache, cache_seqlens, 0 if k is None else k.shape[1])
    out, lse = with_cache(
        q,
        cache,
        (k, v),
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved,
        tables_cover_cache=True,
        cache_seqlens=cache_seqlens,
        options=options_of(
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=window_size,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
        ),
    )
    return (out, lse) if return_softmax_lse else out


USE_TRITON_ROCM = False


def _get_block_size_n(device: Any, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """Of the keys whose probabilities are relative to one maximum: here all of a row."""
    return 2**31 - 1


def _without_kernel(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{name} was called, but Strobe has no such kernel: call flash_attn_func or its kin")

    return call


# The extension's own functions, which some import.
flash_attn_gpu = SimpleNamespace(
    **{name: _without_kernel(f"flash_attn_gpu.{name}") for name in ("fwd", "bwd", "varlen_fwd", "varlen_bwd")}
)
