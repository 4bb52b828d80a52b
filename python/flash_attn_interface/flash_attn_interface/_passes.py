# SPDX-License-Identifier: Apache-2.0
"""The two passes beneath FlashAttention-3's functions, which ring attention and Megatron call by themselves.

head_dim is a multiple of 8 on a GPU: what pads others is above these functions.
"""

from typing import Any

from strobe.integrations.flash_attention import (
    backward_pass,
    forward_pass,
    given_lengths,
    options_of,
    reject_unsupported,
)
from strobe.torch import attention
from strobe.torch.ops import rows
from torch import Tensor


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    qv: Tensor | None = None,
    out_: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Tensor | None = None,
    kv_batch_idx: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    seqlens_rotary: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> tuple[Any, Any, Tensor, Tensor]:
    """(out, lse [batch, heads, seqlen_q] or [heads, total_q], and two tensors without elements: there are no partial
    results). Records its gradient, but where it writes to ``out_``."""
    reject_unsupported(
        k_new=k_new,
        v_new=v_new,
        qv=qv,
        cu_seqlens_k_new=cu_seqlens_k_new,
        page_table=page_table,
        kv_batch_idx=kv_batch_idx,
        leftpad_k=leftpad_k,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        seqlens_rotary=seqlens_rotary,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
    )
    options = options_of(
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=(window_size_left, window_size_right),
        attention_chunk=attention_chunk,
        softcap=softcap,
    )
    options |= given_lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k)
    if out_ is None:
        out, lse = attention(*(rows(x) for x in (q, k, v)), return_lse=True, **options)
    else:
        out, lse = forward_pass(q, k, v, out=out_, **options)
    return out, lse, out.new_empty(0), lse.new_empty(0)


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    sequed_q: Tensor | None = None,
    sequed_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> None:
    """Writes dq, dk and dv. FlashAttention-3 returns softmax_d, which Strobe keeps to itself: None."""
    options = options_of(
        softmax_scale=softmax_scale,
        causal=is_causal,
        window_size=(window_size_left, window_size_right),
        softcap=softcap,
        deterministic=deterministic,
    )
    options |= given_lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, sequed_q, sequed_k)
    backward_pass((dout, q, k, v, out, softmax_lse), (dq, dk, dv), **options)
