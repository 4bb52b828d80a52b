# SPDX-License-Identifier: Apache-2.0
"""The third result of a call with dropout and return_attn_probs, by which tests learn what dropout took."""

from typing import Any

import strobe
import torch
from strobe.torch import attention
from torch import Tensor

_COLUMNS = 512  # as many values as a key may have
_ROUNDING = 128  # of the extents that FlashAttention-2 returns


def signed_probabilities(
    q: Tensor, k: Tensor, lengths: dict[str, Any], *, dropout: float, seed: int, offset: int, **options: Any
) -> Tensor:
    """[batch, heads, seqlen_q, seqlen_k] of q's dtype, with both lengths rounded up, computed on the CPU.

    A probability is divided by the largest of its row, and negative where dropout took it. `lengths` are those of
    packed q and k, or empty. This is the matrix that attention never stores: it is there for tests.
    """
    slopes = options.pop("alibi_slopes", None)
    blocks = []
    for index, (rows, keys) in enumerate(_sequences(q, k, lengths)):
        if slopes is not None:
            options["alibi_slopes"] = (slopes if slopes.dim() == 1 else slopes[index]).cpu()
        blocks.append(_probabilities(rows, keys, options))
    longest = (max(block.shape[axis] for block in blocks) for axis in (1, 2))
    shape = (len(blocks), q.shape[-2], *(-(-extent // _ROUNDING) * _ROUNDING for extent in longest))
    result = torch.zeros(shape)
    for matrix, block in zip(result, blocks, strict=True):
        matrix[:, : block.shape[1], : block.shape[2]] = block / block.amax(-1, keepdim=True).clamp(min=1e-30)
    kept = torch.from_numpy(strobe.dropout_mask(shape, dropout, seed=seed, offset=offset)).bool()
    return torch.where(kept, result, -result).to(q)


def _sequences(q: Tensor, k: Tensor, lengths: dict[str, Any]) -> Any:
    """(q, k) of each sequence, without a batch axis."""
    if not lengths:
        return zip(q, k, strict=True)
    counts = (lengths[name].diff().tolist() for name in ("cu_seqlens_q", "cu_seqlens_k"))
    return zip(*(x[: sum(count)].split(count) for x, count in zip((q, k), counts, strict=True)), strict=True)


def _probabilities(q: Tensor, k: Tensor, options: dict[str, Any]) -> Tensor:
    """[heads, seqlen_q, seqlen_k] float32: attention to unit vectors, as many at once as fit."""
    q, k = (x.detach()[None].cpu().float() for x in (q, k))
    units = torch.eye(k.shape[1]).split(_COLUMNS, dim=1)
    values = (part[None, :, None].expand(1, -1, k.shape[2], -1) for part in units)
    return torch.cat([attention(q, k, v, **options)[0] for v in values], dim=-1).transpose(0, 1)
