# SPDX-License-Identifier: Apache-2.0
"""Causal attention by several libraries: each takes q, k and v, [batch, seqlen, heads, head_dim]."""

import torch
from model import Attention
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def strobe_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    import strobe.torch

    return strobe.torch.attention(q, k, v, causal=True)


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)


def by_backend(backend: SDPBackend) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return sdpa_attention(q, k, v)

    return attention


# What a score becomes where a model has a bias of relative positions, [heads, reach].
RELATIVE_SCORE = "score + bias[head][min(q - k, reach - 1)]"


def strobe_relative(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    import strobe.torch

    score = RELATIVE_SCORE.replace("reach", str(bias.shape[1]))
    return strobe.torch.attention(q, k, v, causal=True, score=score, captures={"bias": bias})


def sdpa_relative(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The bias of every pair is a tensor of its own here."""
    positions = torch.arange(q.shape[1], device=q.device)
    distances = positions[:, None] - positions
    pairs = bias[:, distances.clamp(0, bias.shape[1] - 1)].masked_fill(distances < 0, float("-inf"))
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*heads_first, attn_mask=pairs.to(q.dtype)).transpose(1, 2)


RELATIVE_ATTENTIONS: dict[str, Attention] = {"strobe": strobe_relative, "sdpa": sdpa_relative}

ATTENTIONS: dict[str, Attention] = {
    "strobe": strobe_attention,
    "sdpa": sdpa_attention,  # what PyTorch chooses
    "cudnn": by_backend(SDPBackend.CUDNN_ATTENTION),
    "flash": by_backend(SDPBackend.FLASH_ATTENTION),  # FlashAttention-2 on a GPU
    "math": by_backend(SDPBackend.MATH),  # standard attention, which stores the whole matrix
}
