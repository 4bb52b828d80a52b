# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's calls, computed by Strobe. Unsupported arguments raise NotImplementedError, which names them."""

from typing import Any

import torch
from strobe import merge
from strobe.integrations.checks import check_int32, check_packed, check_shape
from strobe.integrations.flash_attention import (
    float8_call,
    given_lengths,
    options_of,
    padded_attention,
    with_query_values,
)
from strobe.integrations.kv_cache import Cache, with_cache
from torch import Tensor

from flash_attn_interface._passes import _flash_attn_backward, _flash_attn_forward

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None,
    descales: tuple[Tensor | None, Tensor | None, Tensor | None],
    options: dict[str, Any],
    return_lse: bool,
) -> Any:
    result = float8_call(q, k, v, descales, qv, return_lse=return_lse, **options)
    if result is not None:
        return result
    q, k, options = with_query_values(q, k, v, qv, options)
    return padded_attention(q, k, v, return_lse=return_lse, **options)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """out, or (out, lse [batch, heads, seqlen_q]) with return_attn_probs.

    With float8_e4m3fn q, k and v the scales are [batch, heads_kv], and out is bfloat16. qv, of q's shape but v's
    head_dim, adds qv v^T to the scores; a GPU whose kernels lack the call copies K and V that are not views of one row.
    """
    options = options_of(
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        deterministic=deterministic,
    )
    return _attention(q, k, v, qv, (q_descale, k_descale, v_descale), options, return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """out, or (out, lse [heads, total_q]) with return_attn_probs. float8_e4m3fn as flash_attn_func has it."""
    options = options_of(
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        deterministic=deterministic,
    )
    options |= given_lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k)
    return _attention(q, k, v, qv, (q_descale, k_descale, v_descale), options, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """qkv [batch, seqlen, 3, heads, head_dim], or [batch, seqlen, heads_q + 2 heads_kv, head_dim] with num_heads_q."""
    if qkv.dim() == 5:
        check_packed("qkv", qkv, -3, 3)
        q, k, v = qkv.unbind(dim=-3)
    else:
        if num_heads_q is None:
            raise ValueError("qkv has rank 4 and num_heads_q is None: give the number of query heads")
        heads_kv = (qkv.shape[2] - num_heads_q) // 2
        check_packed("qkv", qkv, 2, num_heads_q + 2 * heads_kv)
        q, k, v = qkv.split([num_heads_q, heads_kv, heads_kv], dim=-2)
    return flash_attn_func(
        *(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size),
        attention_chunk=attention_chunk,
        softcap=softcap,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | int | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """out, or (out, lse, None, None) with return_softmax_lse: there are no partial results.

    Writes k and v to the cache, which may be pages of any size; cache_batch_idx then says the rows of page_table. A
    cache of float8_e4m3fn or int8 has scales [batch, heads_kv], k_descale and v_descale; a float8_e4m3fn q beside it
    becomes bfloat16, as out is.
    """
    if page_table is not None and cache_batch_idx is not None:
        check_int32(page_table=page_table, cache_batch_idx=cache_batch_idx)
        page_table, cache_batch_idx = page_table.index_select(0, cache_batch_idx), None
    elif page_table is None and cache_batch_idx is None:
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        check_shape("k_cache", k_cache, (batch, *k_cache.shape[1:]), "[batch, seqlen, heads_kv, head_dim]")
    out, lse = with_cache(
        q,
        Cache(k_cache, v_cache, page_table, cache_batch_idx, cache_leftpad),
        (k, v),
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved,
        cache_seqlens=cache_seqlens,
        rotary_seqlens=rotary_seqlens,
        tables_cover_cache=page_table is not None,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_new=cu_seqlens_k_new,
        max_seqlen_q=max_seqlen_q,
        scales={"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale},
        qv=qv,
        options=options_of(
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=window_size,
            attention_chunk=attention_chunk,
            softcap=softcap,
        ),
    )
    return (out, lse, None, None) if return_softmax_lse else out


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Merges results over different keys: out_partial [splits, .., heads, head_dim], lse_partial [splits, .., heads].

    Gives (out [.., heads, head_dim], lse [.., heads]). Source: Dao, "FlashAttention-2" (2023), section 2.3.1.
    """
    logarithms = lse_partial.transpose(-1, -2).contiguous()  # heads before rows
    parts = list(zip(out_partial, logarithms, strict=True))
    merged, lse = merge(parts, out=out, out_dtype=out_dtype if out is None else None)
    return merged, lse.transpose(-1, -2)


def get_scheduler_metadata(*arguments: Any, **options: Any) -> None:
    """None: Strobe plans a call when it comes."""
