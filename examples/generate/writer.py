# SPDX-License-Identifier: Apache-2.0
"""Continues texts by a GPT: in batches with a cache in pages, or, to compare with, one by one without a cache."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from cache import PagedCache, Step, cached_attention
from model import Attention, Gpt
from torch import Tensor


@dataclass
class Sampling:
    """How a token is drawn from logits."""

    temperature: float = 0.0  # 0: the most probable token
    top_k: int = 0  # only the most probable so many are drawn; 0: all
    seed: int = 0


@dataclass
class Sequence:
    tokens: list[int]  # the prompt, and what has been written
    length: int  # that it ends with
    sampling: Sampling
    index: int  # among the sequences; each draws random numbers of its own, so that others do not matter
    cached: int = 0
    pages: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # that tokens were drawn from, [characters] each

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.sampling.seed + self.index)

    @property
    def ended(self) -> bool:
        return len(self.tokens) == self.length

    def write(self, logits: Tensor) -> None:
        """Draws the next token: the largest of logits / temperature + Gumbel noise (Gumbel, 1954)."""
        scores = logits = logits.float().cpu()
        self.logits.append(logits)
        if self.sampling.temperature > 0:
            noise = torch.empty_like(scores).exponential_(generator=self.generator)
            scores = scores / self.sampling.temperature - noise.log()
        if self.sampling.top_k:
            kept = logits.topk(min(self.sampling.top_k, len(logits))).indices
            scores = torch.full_like(scores, -torch.inf).scatter(0, kept, scores[kept])
        self.tokens.append(int(scores.argmax()))


Progress = Callable[[int], object]
"""Is told how many tokens a step wrote."""


@torch.no_grad()
def write(model: Gpt, sequences: list[Sequence], cache: PagedCache, chunk: int, progress: Progress) -> None:
    """Continues all sequences to their lengths. Those that the cache has pages for run together; a step takes up to
    `chunk` tokens of each: of its prompt, or the one that was written last."""
    waiting, running = list(sequences), []
    while waiting or running:
        while waiting and (pages := cache.take(waiting[0].length)) is not None:
            waiting[0].pages = pages
            running.append(waiting.pop(0))
        progress(take_step(model, running, cache, chunk))
        for sequence in running:
            if sequence.ended:
                cache.give_back(sequence.pages)
        running = [sequence for sequence in running if not sequence.ended]


def take_step(model: Gpt, running: list[Sequence], cache: PagedCache, chunk: int) -> int:
    """One pass of the model over the next tokens of each sequence. Returns how many tokens were written."""
    device = model.token.weight.device
    new = [sequence.tokens[sequence.cached : sequence.cached + chunk] for sequence in running]
    counts = [len(tokens) for tokens in new]
    step = Step.of([s.pages for s in running], [s.cached for s in running], counts, device)
    for layer, block in enumerate(model.blocks):
        block.attention = partial(cached_attention, cache, layer, step)
    tokens = torch.tensor([token for tokens in new for token in tokens], device=device)
    logits = model(tokens[None], step.positions())[0, step.cu_seqlens[1:].long() - 1]
    written = 0
    for sequence, count, row in zip(running, counts, logits, strict=True):
        sequence.cached += count
        if sequence.cached == len(sequence.tokens):
            sequence.write(row)
            written += 1
    return written


@torch.no_grad()
def write_without_cache(model: Gpt, sequences: list[Sequence], attention: Attention, progress: Progress) -> None:
    """The same texts, with the whole sequence computed again for each token."""
    for block in model.blocks:
        block.attention = attention
    for sequence in sequences:
        while not sequence.ended:
            tokens = torch.tensor(sequence.tokens, device=model.token.weight.device)
            sequence.write(model(tokens[None])[0, -1])
            progress(1)
