# SPDX-License-Identifier: Apache-2.0
"""Calls of the engine: one of a rank's calls, or several in one launch, as they see the rank's tensors."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from strobe.torch.context_parallel.exchange import part, rows_second
from strobe.torch.context_parallel.keys import KeyCall
from strobe.torch.context_parallel.parts import CallOptions, Heads, has_offsets, part_options, to_device

JOINED_ON_GPUS = {"forward": False, "backward": True}
"""Whether one launch computes a rank's rows: as measured on two H100s, docs/log/context-parallel.json."""
_PIECE = 8 << 30
"""Of pairs of a query and a key, times head_dim: some 60 us of an H100, in which the host launches another."""
_APART = ("bias", "block_mask", "dropout", "seqused_q", "seqused_k")  # of queries and keys of one call alone


class Launch:
    """One call of a rank."""

    def __init__(self, options: CallOptions, call: KeyCall) -> None:
        self.calls: tuple[KeyCall, ...] = (call,)
        self._options = options

    def queries(self, x: Tensor, heads: Heads) -> Tensor:
        """Of q or what has its shape, [batch, rows, heads, ..] or packed [rows, heads, ..]."""
        rows = slice(*self.calls[0].rows)
        return x[:, rows, heads.of_queries] if self._options.batched else x[rows, heads.of_queries]

    def lse(self, x: Tensor, heads: Heads) -> Tensor:
        """Of lse, [batch, heads, rows] or packed [heads, rows]."""
        return x[..., heads.of_queries, slice(*self.calls[0].rows)]

    def largest(self, q: Tensor, options: dict[str, Any]) -> Tensor:
        """Memory for the largest scores of the queries, which have these options: [batch or sequences, heads]."""
        number = q.shape[0] if self._options.batched else len(options["cu_seqlens_q"]) - 1
        return q.new_empty((number, q.shape[-2]), dtype=torch.float32)

    def put_largest(self, own: Tensor, largest: Tensor, heads: Heads) -> None:
        """The same among those of all sequences and heads."""
        x = largest[:, heads.of_queries]
        if self._options.batched:
            x.copy_(torch.maximum(x, own.amax(0, keepdim=True) if len(self.calls) > 1 else own))
            return
        spans = self.calls[0].spans
        sequences = [span.sequence for span in spans]
        own = own if len(own) == len(spans) else own[sequences]  # those with no rows have a place, too
        x[sequences] = torch.maximum(x[sequences], own)

    def keys(self, buffer: Tensor) -> Tensor:
        """Of keys or values, which have their rows first."""
        return rows_second(buffer[slice(*self.calls[0].buffer)], self._options.batched)

    def gradients(self, buffer: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Memory for those of keys and values together: as the call takes it, and by call, rows first."""
        gradient = torch.empty_like(buffer[slice(*self.calls[0].buffer)])
        return rows_second(gradient, self._options.batched), [gradient]

    def options(self, heads: Heads, q: Tensor) -> dict[str, Any]:
        """What the engine takes; q has all rows and heads."""
        return part_options(self._options, self.calls[0], heads, q)


class JoinedLaunch(Launch):
    """Calls of one sequence in one launch, in which they are a batch that reads the same keys, each so many of them."""

    def __init__(self, options: CallOptions, calls: Sequence[KeyCall]) -> None:
        self.calls, self._options = tuple(calls), options

    def queries(self, x: Tensor, heads: Heads) -> Tensor:
        return x[0, :, heads.of_queries].unflatten(0, (len(self.calls), -1))

    def lse(self, x: Tensor, heads: Heads) -> Tensor:
        return x[0, heads.of_queries].unflatten(-1, (len(self.calls), -1)).transpose(0, 1)

    def keys(self, buffer: Tensor) -> Tensor:
        return buffer[: self._longest()].transpose(0, 1).expand(len(self.calls), *(-1,) * (buffer.dim() - 1))

    def gradients(self, buffer: Tensor) -> tuple[Tensor, list[Tensor]]:
        gradient = buffer.new_empty((len(self.calls), self._longest(), *buffer.shape[2:]))
        return gradient, [x[: call.buffer[1]].unsqueeze(1) for x, call in zip(gradient, self.calls, strict=True)]

    def options(self, heads: Heads, q: Tensor) -> dict[str, Any]:
        return part_options(self._options, self.calls[-1], heads, q) | {
            "seqused_k": _numbers_of_keys(self.calls, q.device)
        }

    def _longest(self) -> int:
        return max(call.buffer[1] for call in self.calls)


def keys_of(launch: Launch, buffer: Tensor, k: Tensor, v: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """What a launch takes of a buffer that has keys and values joined, of some of its heads."""
    keys, values = (launch.keys(x[..., heads, :]) for x in part(buffer, k, v))
    return keys, values


@lru_cache(maxsize=256)
def _numbers_of_keys(calls: tuple[KeyCall, ...], device: torch.device) -> Tensor:
    return to_device([call.buffer[1] for call in calls], device)


def launches(options: CallOptions, calls: Sequence[KeyCall], batch: int, joined: bool) -> list[Launch]:
    """Those of calls whose queries are, one behind another, a rank's rows; `joined`: in one launch, if it can be."""
    if len(calls) > 1 and batch == 1 and joined and _can_join(options, calls):
        return [JoinedLaunch(options, calls)]
    return [Launch(options, call) for call in calls]


def _can_join(options: CallOptions, calls: Sequence[KeyCall]) -> bool:
    """They see the keys of the sequence from its first on, under a mask that is aligned to the last."""
    slopes = options.given.get("alibi_slopes")
    return (
        options.batched
        and len({call.rows[1] - call.rows[0] for call in calls}) == 1
        and all(call.buffer[0] == 0 for call in calls)
        and options.given.keys().isdisjoint(_APART)
        and (slopes is None or slopes.dim() == 1)
        and not any(has_offsets(options, call) for call in calls)
    )


def longest_first(launches: Sequence[Launch]) -> list[Launch]:
    """By the pairs of queries and keys, the masked ones counted in."""
    return sorted(launches, key=lambda x: -sum(_pairs(call) for call in x.calls))


def _pairs(call: KeyCall) -> int:
    return sum((s.stop - s.start) * (b - a) for s, (a, b) in zip(call.spans, call.keys, strict=True))


def pieces(launch: Launch, heads: Heads, q: Tensor) -> list[Heads]:
    """The heads of a launch in several: each begins on the multiprocessors that are free, which one of all does not."""
    work = sum(map(_pairs, launch.calls)) * heads.number * heads.group * q.shape[-1]
    number = max(1, min(heads.number, work // _PIECE))
    ends = [heads.first + heads.number * i // number for i in range(number + 1)]
    return [Heads(start, stop, heads.group) for start, stop in pairwise(ends)]
