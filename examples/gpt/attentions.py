# SPDX-License-Identifier: Apache-2.0
"""Causal attention by several libraries: each takes q, k and v, [batch, seqlen, heads, head_dim]."""

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


ATTENTIONS: dict[str, Attention] = {
    "strobe": strobe_attention,
    "sdpa": sdpa_attention,  # what PyTorch chooses
    "cudnn": by_backend(SDPBackend.CUDNN_ATTENTION),
    "flash": by_backend(SDPBackend.FLASH_ATTENTION),  # FlashAttention-2 on a GPU
    "math": by_backend(SDPBackend.MATH),  # standard attention, which stores the whole matrix
}
