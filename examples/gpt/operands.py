# SPDX-License-Identifier: Apache-2.0
"""Causal attention in fewer bits, by name: all of Q, K and V, or K and V alone as a cache holds them."""

from typing import Any

import strobe
import torch
from model import Attention
from torch import Tensor

# As fast as FlashAttention-3's fp8 and more accurate: docs/eight-bit.md.
FAST = {"q_scales": "block", "k_scales": "block", "v_scales": "block", "rotate_v": False, "center_k": False}


def bfloat16_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return strobe.attention(*(x.bfloat16() for x in (q, k, v)), causal=True).to(q.dtype)


def eight_bit_attention(element: str, **options: Any) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = strobe.quantize(q, k, v, element=element, **options)
        return strobe.attention(x.q, x.k, x.v, causal=True, **x.options).to(q.dtype)

    return attention


def eight_bit_cache(element: torch.dtype, largest: float) -> Attention:
    """A cache with a scale for each sequence and head, to which all of k and v are appended, and q in bfloat16."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scales = [(x.float().abs().amax((1, 3)) / largest).clamp(min=2**-80)[..., None] for x in (k, v)]
        descale = dict(zip(("k_descale", "v_descale"), scales, strict=True))
        caches = [torch.empty(x.shape, dtype=element, device=x.device) for x in (k, v)]
        strobe.append(*caches, k, v, torch.zeros(len(k), dtype=torch.int32, device=k.device), **descale)
        return strobe.attention(q.bfloat16(), *caches, causal=True, **descale).to(q.dtype)

    return attention


OPERANDS: dict[str, Attention] = {
    "bfloat16": bfloat16_attention,
    "int8": eight_bit_attention("int8"),
    "e4m3": eight_bit_attention("float8_e4m3fn", **FAST),
    "int8 cache": eight_bit_cache(torch.int8, 127),
    "e4m3 cache": eight_bit_cache(torch.float8_e4m3fn, 448),
}
