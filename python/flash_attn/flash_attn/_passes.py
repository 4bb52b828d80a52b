# SPDX-License-Identifier: Apache-2.0
"""The two passes beneath FlashAttention-2's functions, which ring attention and Megatron call by themselves.

None of them records a gradient. head_dim is a multiple of 8 on a GPU: what pads others is above these functions.
"""

from typing import Any

import torch
from strobe.integrations.checks import check_given, check_int32, max_seqlen
from strobe.integrations.flash_attention import (
    backward_pass,
    forward_pass,
    given_lengths,
    options_of,
)
from strobe.integrations.kv_cache import Cache, cached_attention
from torch import Tensor

from flash_attn._probabilities import signed_probabilities


def paged_attention(
    q: Tensor, cache: Cache, lengths: Tensor, cu_seqlens_q: Tensor, max_seqlen_q: int, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """(out, lse) of packed q over pages of a cache, for calls with block_table."""
    if "dropout" in options:
        raise NotImplementedError(f"dropout_p is {options['dropout']} with block_table: pages are for inference")
    packing = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen("q", cu_seqlens_q, max_seqlen_q)}
    return cached_attention(q, cache, lengths, **options, **packing)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], return_softmax: bool, **lengths: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, lse, probabilities, rng_state): with dropout, seed and offset of the call, [2] int64 on q's device."""
    probabilities = q.new_empty(0)
    if "dropout" not in options:
        if return_softmax:
            raise ValueError("return_softmax is given with dropout_p of 0: it is for tests of dropout")
        return (*forward_pass(q, k, v, **options, **lengths), probabilities, q.new_empty(2, dtype=torch.int64))
    random = torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=q.device)
    out, lse = forward_pass(q, k, v, random_state=random.view(torch.int32), **options, **lengths)
    if return_softmax:
        options["seed"], options["offset"] = random.tolist()
        probabilities = signed_probabilities(q, k, lengths, **options)
    return out, lse, probabilities, random


def _backward(
    tensors: tuple[Tensor, ...],
    gradients: tuple[Tensor | None, ...],
    options: dict[str, Any],
    rng_state: Tensor | None,
    **lengths: Any,
) -> None:
    if "dropout" in options:
        if rng_state is None:
            raise ValueError("rng_state is None in a backward with dropout: give what the forward returned")
        options["random_state"] = rng_state.view(torch.int32)
    backward_pass(tensors, gradients, **options, **lengths)


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, lse [batch, heads, seqlen_q], probabilities, rng_state): the third without elements but for tests of
    dropout."""
    options = options_of(
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=(window_size_left, window_size_right),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
    )
    return _forward(q, k, v, options, return_softmax)


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As _flash_attn_forward, with lse [heads, total_q].

    With block_table [batch, max_pages] k and v are pages [num_pages, page_size, heads_kv, head_dim], of which a
    sequence's first seqused_k rows count, or as many as cu_seqlens_k says; leftpad_k [batch] of them are left out.
    """
    check_given(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    options = options_of(
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=(window_size_left, window_size_right),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
    )
    if block_table is not None:
        check_int32(cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k)
        cache = Cache(k, v, block_table, leftpad=leftpad_k)
        lengths = cu_seqlens_k.diff() if seqused_k is None else seqused_k
        out, lse = paged_attention(q, cache, lengths, cu_seqlens_q, max_seqlen_q, options)
        return out, lse, q.new_empty(0), q.new_empty(2, dtype=torch.int64)
    if leftpad_k is not None:
        raise NotImplementedError("leftpad_k is given without block_table: left padding is supported in pages alone")
    packing = given_lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k=seqused_k)
    return _forward(q, k, v, options, return_softmax, **packing)


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> None:
    """Writes dq, dk and dv. FlashAttention-2 returns softmax_d, which Strobe keeps to itself: None."""
    options = options_of(
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=(window_size_left, window_size_right),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
        deterministic=deterministic,
    )
    _backward((dout, q, k, v, out, softmax_lse), (dq, dk, dv), options, rng_state)


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> None:
    """As _flash_attn_backward."""
    check_given(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    options = options_of(
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=(window_size_left, window_size_right),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
        deterministic=deterministic,
    )
    packing = given_lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    _backward((dout, q, k, v, out, softmax_lse), (dq, dk, dv), options, rng_state, **packing)
