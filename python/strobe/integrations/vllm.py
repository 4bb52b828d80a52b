# SPDX-License-Identifier: Apache-2.0
"""vLLM's own variant of flash_attn_varlen_func: prefill and decode of a step in one call, keys in pages, on Strobe."""

from typing import Any

import torch
from torch import Tensor

from strobe.integrations.checks import check_int32, max_seqlen
from strobe.integrations.flash_attention import forward_pass, options_of, padded_attention, reject_unsupported
from strobe.integrations.kv_cache import Cache, cache_scales, cached_attention
from strobe.torch.context_parallel.decode import Shard, shard_options

__all__ = ["flash_attn_varlen_func"]


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    q_v: Tensor | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    return_softmax_lse: bool = False,
    out: Tensor | None = None,
    scheduler_metadata: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    num_splits: int = 0,
    fa_version: int = 3,
    s_aux: Tensor | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_tot_seqused_k: Tensor | None = None,
) -> Any:
    """out, or (out, lse [heads, total_q]) with return_softmax_lse.

    q [total_q, heads_q, head_dim]; k and v pages [num_pages, page_size, heads_kv, head_dim] with block_table
    [batch, max_pages] and the lengths seqused_k [batch], or packed [total_k, heads_kv, head_dim] with cu_seqlens_k.
    s_aux [heads_q] are sinks. Without gradients. With cp_world_size the pages have the keys of cp_rank alone, of which
    key i is key i * cp_world_size + cp_rank of its sequence; cp_tot_seqused_k [batch] has the whole lengths, and the
    sinks count on rank 0.
    """
    reject_unsupported(q_v=q_v)
    if dropout_p:
        raise NotImplementedError(f"dropout_p is {dropout_p}: it is not supported")
    options = options_of(
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=(-1, -1) if window_size is None else window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    options |= {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen("q", cu_seqlens_q, max_seqlen_q)}
    if s_aux is not None:
        options["sink"] = s_aux.float()
    check_int32(seqused_k=seqused_k)
    batch = cu_seqlens_q.shape[0] - 1
    scales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    if block_table is not None:
        if seqused_k is None:
            raise ValueError("block_table is given without seqused_k: give the number of keys of each sequence")
        cache = Cache(k, v, page_table=block_table)
        if cp_world_size != 1:
            if cp_tot_seqused_k is None:
                raise ValueError(f"cp_world_size is {cp_world_size} without cp_tot_seqused_k: give the whole lengths")
            options = shard_options(q, cp_tot_seqused_k, Shard(cp_rank, cp_world_size), options)
            del options["seqused_k"]  # the shard's own are given
        q, stored = cache_scales(q, cache, batch, scales)
        result, lse = cached_attention(q, cache, seqused_k, out=out, **stored, **options)
    else:
        if cp_world_size != 1:
            raise NotImplementedError(
                f"cp_world_size is {cp_world_size} without block_table: it is for caches in pages"
            )
        if cu_seqlens_k is None:
            raise ValueError("cu_seqlens_k is None and block_table, too: give one of them")
        reject_unsupported(**scales)
        options |= {"cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": max_seqlen("k", cu_seqlens_k, max_seqlen_k)}
        if seqused_k is not None:
            options["seqused_k"] = seqused_k
        if out is not None:
            result, lse = forward_pass(q, k, v, out=out, **options)
        else:
            with torch.no_grad():
                result, lse = padded_attention(q, k, v, return_lse=True, **options)
    return (result, lse) if return_softmax_lse else result
