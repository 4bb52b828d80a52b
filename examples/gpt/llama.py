# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers' Llama with the layers of Llama 3 8B: 32 heads, 8 key heads, head_dim 128."""

from contextlib import nullcontext

import strobe.integrations.transformers
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM

strobe.integrations.transformers.register()

# Standard attention is PyTorch's, too, not transformers' "eager": all but Strobe share the model's code.
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}


class Llama(nn.Module):
    """Random weights of the default dtype; `layers` of the model's 32."""

    def __init__(self, vocabulary: int, context: int, *, width: int, heads: int, layers: int) -> None:
        super().__init__()
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=width * 7 // 2,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=max(1, heads // 4),
            max_position_embeddings=context,
        )
        self.llama = LlamaForCausalLM(config)
        self.backend: SDPBackend | None = None

    @property
    def blocks(self) -> nn.ModuleList:
        return self.llama.model.layers

    @property
    def token(self) -> nn.Embedding:
        return self.llama.model.embed_tokens

    def use(self, attention: str) -> None:
        """One of the names of `attentions.ATTENTIONS`."""
        self.llama.set_attn_implementation("strobe" if attention == "strobe" else "sdpa")
        self.backend = BACKENDS.get(attention)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, seqlen, vocabulary] of the token after each of tokens [batch, seqlen]."""
        with sdpa_kernel(self.backend) if self.backend else nullcontext():
            return self.llama(input_ids=tokens, use_cache=False).logits


def make_llama(vocabulary: int, context: int, device: str, **sizes: int) -> Llama:
    """In bfloat16 on a GPU, in float32 on a CPU."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    try:
        with torch.device(device):
            return Llama(vocabulary, context, **sizes)
    finally:
        torch.set_default_dtype(before)
