# SPDX-License-Identifier: Apache-2.0
"""A GPT of a few layers, whose attention is given to it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Attention = Callable[..., Tensor]
"""Causal attention of q, k and v, each [batch, seqlen, heads, head_dim]; of a model with a relative bias also of the
block's [heads, reach]."""


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and around a shortcut (Radford et al., 2019)."""

    def __init__(self, width: int, heads: int, attention: Attention, reach: int = 0) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.bias = nn.ParameterList([torch.zeros(heads, reach)] if reach > 0 else [])
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.project(self.attention(q, k, v, *self.bias).flatten(2))
        return x + self.feed_forward(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(
        self,
        characters: int,
        context: int,
        attention: Attention,
        *,
        width: int = 128,
        heads: int = 4,
        layers: int = 4,
        reach: int = 0,
    ) -> None:
        """With a `reach` every block learns a bias of each head for distances below it, which the last one stands for
        beyond (after T5: Raffel et al., 2020, section 2.1)."""
        super().__init__()
        self.context = context
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, attention, reach) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits [batch, seqlen, characters] of the character after each of tokens [batch, seqlen], which are at
        `positions` [seqlen]; by default from 0."""
        places = self.position.weight[: tokens.shape[1]] if positions is None else self.position(positions)
        x = self.token(tokens) + places
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def write(self, tokens: Tensor, count: int) -> Tensor:
        """tokens [1, seqlen], continued by `count` drawn characters."""
        for _ in range(count):
            logits = self(tokens[:, -self.context :])[:, -1].float()
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        return tokens
