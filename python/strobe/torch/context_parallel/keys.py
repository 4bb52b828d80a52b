# SPDX-License-Identifier: Apache-2.0
"""Which keys the queries of a rank see, who has them, and where they go. Numbers alone, as the layout's."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from strobe.torch.context_parallel.layout import (
    Call,
    Layout,
    Rows,
    Span,
    begins_of,
    common,
    one_behind_another,
    places_in,
    united,
)


class Sight(NamedTuple):
    """What a mask by position shows a query at position p of its sequence."""

    causal: bool = False
    left: int = -1
    """Keys before p; -1: all."""
    right: int = -1
    """Keys behind p; -1: all."""
    chunk: int = 0
    """Keys of p's chunk of so many positions alone; 0: no chunks."""
    align: int = 1
    """The first key is taken from a multiple of this."""
    whole: bool = False
    """All keys are taken: lengths on the device, which nothing here knows, move what a query sees."""

    def keys(self, span: Span, length: int) -> Rows:
        """From the first key of the sequence that a query of the span sees to the one behind the last."""
        if self.whole:
            return 0, length
        first, stop = 0, length
        if self.causal:
            stop = span.stop
        if self.left >= 0:
            first = max(first, span.start - self.left)
        if self.right >= 0:
            stop = min(stop, span.stop + self.right)
        if self.chunk:
            first = max(first, span.start // self.chunk * self.chunk)
            stop = min(stop, -(-span.stop // self.chunk) * self.chunk)
        return first // self.align * self.align, stop

    def work(self, span: Span, length: int) -> int:
        """Keys that the span's queries see, all together."""
        p = np.arange(span.start, span.stop, dtype=np.int64)
        first, stop = np.zeros_like(p), np.full_like(p, length)
        if self.causal:
            stop = p + 1
        if self.left >= 0:
            first = np.maximum(first, p - self.left)
        if self.right >= 0:
            stop = np.minimum(stop, p + self.right + 1)
        if self.chunk:
            first = np.maximum(first, p // self.chunk * self.chunk)
            stop = np.minimum(stop, (p // self.chunk + 1) * self.chunk)
        return int(np.maximum(stop - first, 0).sum())


@dataclass(frozen=True, eq=False)
class KeyCall:
    """A call of a rank: some of its rows, and the keys that they see."""

    rows: Rows
    """Of the rank."""
    spans: Call
    keys: tuple[Rows, ...]
    """Of each span, in its sequence."""
    buffer: Rows
    """Of the rank's buffer of keys."""
    begins: tuple[int, ...]
    """Of each span's first key, from the call's first; the end behind the last."""

    def places(self) -> list[Rows]:
        """Of each span's keys, from the call's first."""
        return [(begin, begin + stop - first) for begin, (first, stop) in zip(self.begins, self.keys, strict=False)]


def key_call(rows: Rows, spans: Call, keys: tuple[Rows, ...], places: Sequence[Rows]) -> KeyCall:
    """Of spans whose keys lie at these places of a buffer, in ascending order."""
    first, stop = places[0][0], places[-1][1]
    return KeyCall(rows, spans, keys, (first, stop), (*(start - first for start, _ in places), stop - first))


@lru_cache(maxsize=256)
def with_all_sequences(call: KeyCall) -> KeyCall:
    """The call in which sequences that it lacks, up to its last, have no rows, so that each has its own number."""
    spans, keys, begins, number = [], [], [], 0
    for sequence in range(call.spans[-1].sequence + 1):
        begins.append(call.begins[number])
        if call.spans[number].sequence == sequence:
            spans.append(call.spans[number])
            keys.append(call.keys[number])
            number += 1
        else:
            spans.append(Span(sequence, 0, 0))
            keys.append((0, 0))
    return KeyCall(call.rows, tuple(spans), tuple(keys), call.buffer, (*begins, call.begins[-1]))


@dataclass(frozen=True, eq=False)
class KeyPlan:
    """What a rank sends, receives and computes, so that its queries meet their keys. Rows by rank of the other side."""

    calls: tuple[KeyCall, ...]
    buffer_rows: int
    own: tuple[tuple[Rows, Rows], ...]
    """Runs of this rank's keys, and where they are in its buffer."""
    sends: tuple[tuple[Rows, ...], ...]
    """Of the buffer, this rank's keys that each other rank needs."""
    receives: tuple[tuple[Rows, ...], ...]
    """Of the buffer, where those of each other rank go."""
    returns: tuple[tuple[tuple[Rows, ...], ...], ...]
    """By call: of the call's keys, whose gradients each rank is due."""
    collects: tuple[tuple[tuple[Rows, ...], ...], ...]
    """By rank and its call: of this rank's keys, those whose gradients come from there."""

    def is_own(self, call: KeyCall) -> bool:
        """Whether the call sees this rank's keys alone."""
        return not any(common([call.buffer], runs) for runs in self.receives)


def _seen(layout: Layout, rank: int, sight: Sight, call: int) -> list[Rows]:
    """The keys of a call, among the rows of all sequences."""
    begins = begins_of(layout.lengths)
    runs = []
    for span in layout.calls[rank][call]:
        first, stop = sight.keys(span, layout.lengths[span.sequence])
        runs.append((begins[span.sequence] + first, begins[span.sequence] + stop))
    return united(runs)


def _needed(layout: Layout, rank: int, sight: Sight) -> list[Rows]:
    """The keys of all calls of a rank."""
    calls = range(len(layout.calls[rank]))
    return united(run for call in calls for run in _seen(layout, rank, sight, call))


@lru_cache(maxsize=256)
def key_plan(layout: Layout, rank: int, sight: Sight) -> KeyPlan:
    """For the scheme in which each rank fetches all the keys that its queries see."""
    ranks = range(layout.world)
    own = layout.places(rank)
    needed = _needed(layout, rank, sight)
    calls = tuple(_calls(layout, rank, sight, needed))
    return KeyPlan(
        calls,
        sum(stop - start for start, stop in needed),
        tuple(zip(one_behind_another(own), places_in(needed, own), strict=True)),
        tuple(_shared_with(layout, rank, other, needed, _needed(layout, other, sight)) for other in ranks),
        tuple(_shared_with(layout, other, rank, needed, needed) for other in ranks),
        tuple(_returns(layout, rank, sight, needed, call.buffer[0], i) for i, call in enumerate(calls)),
        tuple(_collects(layout, rank, other, sight) for other in ranks),
    )


def _shared_with(layout: Layout, of: int, to: int, buffer: list[Rows], needed: list[Rows]) -> tuple[Rows, ...]:
    """Keys of one rank that another needs, as they lie in the buffer of one of the two; none where they are one."""
    return () if of == to else tuple(places_in(buffer, common(layout.places(of), needed)))


def _calls(layout: Layout, rank: int, sight: Sight, needed: list[Rows]) -> list[KeyCall]:
    begins = begins_of(layout.lengths)
    calls = []
    for rows, spans in zip(layout.rows_of_calls(rank), layout.calls[rank], strict=True):
        keys = tuple(sight.keys(span, layout.lengths[span.sequence]) for span in spans)
        whole = [(begins[s.sequence] + a, begins[s.sequence] + b) for s, (a, b) in zip(spans, keys, strict=True)]
        places = places_in(needed, whole)
        calls.append(key_call(rows, spans, keys, places))
    return calls


def _returns(
    layout: Layout, rank: int, sight: Sight, needed: list[Rows], first: int, call: int
) -> tuple[tuple[Rows, ...], ...]:
    seen = _seen(layout, rank, sight, call)
    result = []
    for other in range(layout.world):
        places = places_in(needed, common(seen, layout.places(other)))
        result.append(tuple((start - first, stop - first) for start, stop in places))
    return tuple(result)


def _collects(layout: Layout, rank: int, other: int, sight: Sight) -> tuple[tuple[Rows, ...], ...]:
    own = layout.places(rank)
    calls = range(len(layout.calls[other]))
    return tuple(tuple(places_in(own, common(own, _seen(layout, other, sight, call)))) for call in calls)
