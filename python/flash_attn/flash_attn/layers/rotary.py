# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding."""

import torch
from strobe.integrations.flash_attention import rotate
from torch import Tensor


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """x [batch, seqlen, heads, head_dim] at positions from seqlen_offsets (one, or one a sequence) on."""
    if cu_seqlens is not None:
        raise NotImplementedError("cu_seqlens is given: rotary embedding needs batched x")
    start = torch.as_tensor(seqlen_offsets, device=x.device).expand(x.shape[0])
    positions = start[:, None].long() + torch.arange(x.shape[1], device=x.device)
    rotated = rotate(x, cos, sin, positions, interleaved=interleaved)
    return x.copy_(rotated) if inplace else rotated
