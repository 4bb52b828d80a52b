# SPDX-License-Identifier: Apache-2.0
"""Decides how a rule is computed on sequences of unequal length: padding, and documents that share a row."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from strobe.integrations.transformers.mask import Kind, Mask, Plan
from strobe.integrations.transformers.mask_functions import Form


@dataclass(frozen=True)
class Place:
    """How many queries and keys there are, and the positions of the first of them in their sequences."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    q_offset: int
    kv_offset: int
    anchor: Tensor

    @property
    def device(self) -> torch.device:
        return self.anchor.device

    @property
    def offset(self) -> int:
        """The key at the first query's position."""
        return self.q_offset - self.kv_offset


def padded(form: Form, tokens: Tensor | None, place: Place, keys: int) -> Mask | None:
    """The rule on the first `keys` keys, hidden where `tokens` [batch, keys] is false; None where no option says it."""
    unused = place.seqlen_k - keys
    if tokens is None and not form.rule.chunk:
        if place.seqlen_q > 1 or unused == 0:
            return _mask(place, Plan(Kind.RULE, form.rule, unused))
        # A length on the device, since a compiled decode step has to serve all of them.
        end = torch.full((place.batch,), keys, dtype=torch.int32, device=place.device)
        return _mask(place, Plan(Kind.USED), end=end)
    if tokens is None:
        tokens = torch.ones(place.batch, keys, dtype=torch.bool, device=place.device)
    first, end, is_run = _runs(tokens)
    aligned = _alignment(form, tokens, first, place.kv_offset)
    questions = torch.stack((tokens.all(), is_run.all(), (first == 0).all(), *(answer.all() for answer in aligned)))
    no_padding, runs, from_the_first, one_chunk, chunks_from_key_0, chunks_from_first = questions.tolist()
    rule = replace(form.rule, chunk=0) if one_chunk else form.rule
    if rule.chunk and not (chunks_from_first if runs else chunks_from_key_0):
        return None
    if no_padding and (place.seqlen_q > 1 or unused == 0):
        return _mask(place, Plan(Kind.RULE, rule, unused))
    if place.seqlen_q == 1:
        tokens, unused = pad(tokens, (0, unused)), 0
    if not runs:
        return _mask(place, Plan(Kind.HOLES, rule, unused), tokens=tokens)
    used_q = (end - keys + place.seqlen_q).clamp(0, place.seqlen_q) if rule.has_diagonal else None
    kind = Kind.USED if from_the_first else Kind.RUN
    return _mask(place, Plan(kind, rule, unused), first=None if from_the_first else first, end=end, used_q=used_q)


def packed(form: Form, place: Place) -> Mask | None:
    """The rule within documents; None where no option says it."""
    documents, positions = form.documents, form.positions
    seqlen = place.seqlen_q
    shape = (place.batch, seqlen)
    if documents is None or form.rule.chunk or seqlen != place.seqlen_k or place.q_offset or place.kv_offset:
        return None
    if documents.shape != shape or (positions is not None and positions.shape != shape):
        return None
    steps = documents.diff()
    in_order = (steps >= 0).all()
    if positions is not None:  # the rule counts them, and they follow one another within a document
        in_order = in_order & ((positions.diff() == 1) | (steps != 0)).all()
    begins = pad(steps != 0, (1, 0), value=True).flatten()
    number, is_in_order = torch.stack((begins.sum(), in_order.to(torch.int64))).tolist()
    if not is_in_order:
        return None
    if number == place.batch:
        return _mask(place, Plan(Kind.RULE, form.rule.within(seqlen)))
    cu_seqlens = pad(begins.nonzero().flatten(), (0, 1), value=place.batch * seqlen).int()
    longest = int(cu_seqlens.diff().max())
    plan = Plan(Kind.DOCUMENTS, form.rule.within(longest))
    mask = _mask(place, plan, documents=documents, cu_seqlens=cu_seqlens)
    mask.derived("max_seqlen", lambda: longest)
    return mask


def _mask(place: Place, plan: Plan, **tensors: Tensor | None) -> Mask:
    return Mask(plan, (place.batch, 1, place.seqlen_q, place.seqlen_k), anchor=place.anchor, **tensors)


def _runs(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each sequence: its first token, the end of its last one, int32, and whether all between them are tokens."""
    count = tokens.sum(1)
    first = tokens.int().argmax(1)
    end = tokens.shape[1] - tokens.flip(1).int().argmax(1)
    end = torch.where(count > 0, end, 0)
    return first.int(), end.int(), end - first == count


def _alignment(form: Form, tokens: Tensor, first: Tensor, kv_offset: int) -> tuple[Tensor, ...]:
    """Whether all tokens are of one chunk, whether chunks begin at key 0, and whether they begin at the first token."""
    if not form.rule.chunk:
        return (torch.ones((), dtype=torch.bool, device=tokens.device),) * 3
    chunk = form.rule.chunk
    start = first.new_zeros(1) if form.chunk_start is None else form.chunk_start
    start = start[:, None] - kv_offset
    which = (torch.arange(tokens.shape[1], device=tokens.device) - start).expand(tokens.shape) // chunk
    same = (which == which.gather(1, first.long()[:, None])) | ~tokens
    empty = ~tokens.any(1)
    return same, start % chunk == 0, ((first - start[:, 0]) % chunk == 0) | empty
