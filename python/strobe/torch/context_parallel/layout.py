# SPDX-License-Identifier: Apache-2.0
"""Which rows of which sequences each rank has. Numbers alone: no tensors, no processes.

Rows are counted through all sequences of a batch, one behind another, as packed tensors have them. A span is a run of
rows of one sequence. A rank's spans come in calls: a call has at most one span of a sequence, in the order of the
sequences, so that one launch computes it; the rows of a rank are those of its first call, then those of its second.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

Kind = Literal["zigzag", "contiguous", "documents"]
KINDS = ("zigzag", "contiguous", "documents")
Rows = tuple[int, int]
"""From the first row to the one behind the last."""

_TILE = 128  # rows of a kernel's tile: spans that are shorter waste the rest of it
_BALANCED = 1.02  # the most work or rows of a rank, of their mean, with which documents stay whole


class Span(NamedTuple):
    """Rows from `start` to `stop` of one sequence."""

    sequence: int
    start: int
    stop: int


Call = tuple[Span, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """The rows of each rank: ``calls[rank]`` are its spans. Equal to itself alone, so that looking one up is fast."""

    kind: Kind
    lengths: tuple[int, ...]
    calls: tuple[tuple[Call, ...], ...]

    @property
    def world(self) -> int:
        return len(self.calls)

    @property
    def total(self) -> int:
        """Rows of all sequences."""
        return sum(self.lengths)

    def spans(self, rank: int) -> Iterable[Span]:
        """In the order of the rank's rows."""
        return (span for call in self.calls[rank] for span in call)

    def rows(self, rank: int) -> int:
        """How many rows the rank has."""
        return sum(span.stop - span.start for span in self.spans(rank))

    def rows_of_calls(self, rank: int) -> list[Rows]:
        """Of each call, among the rank's rows."""
        return one_behind_another((0, sum(s.stop - s.start for s in call)) for call in self.calls[rank])

    def places(self, rank: int) -> tuple[Rows, ...]:
        """The rank's rows among those of all sequences, in its own order; what is adjacent is one."""
        begins = begins_of(self.lengths)
        return tuple(joined((begins[s.sequence] + s.start, begins[s.sequence] + s.stop) for s in self.spans(rank)))


@lru_cache(maxsize=1024)
def begins_of(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Where each sequence begins, and behind the last one."""
    return (0, *accumulate(lengths))


def joined(runs: Iterable[Rows]) -> list[Rows]:
    """The runs of rows that are not empty, those that follow one another as one."""
    result: list[Rows] = []
    for start, stop in runs:
        if start >= stop:
            continue
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return result


def united(runs: Iterable[Rows]) -> list[Rows]:
    """The rows of all runs in ascending order, each once."""
    result: list[Rows] = []
    for start, stop in sorted(run for run in runs if run[0] < run[1]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result


def common(a: Iterable[Rows], b: Iterable[Rows]) -> list[Rows]:
    """The rows that are in both, in ascending order; each result lies in one run of `a` and one of `b`."""
    result: list[Rows] = []
    a, b = sorted(a), sorted(b)
    i = j = 0
    while i < len(a) and j < len(b):
        start, stop = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < stop:
            result.append((start, stop))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return result


def places_in(runs: Sequence[Rows], parts: Iterable[Rows]) -> list[Rows]:
    """Where parts of some runs of rows lie in a tensor that has the rows of these runs, one run behind the other."""
    offsets = [start for start, _ in one_behind_another(runs)]
    order = sorted(range(len(runs)), key=lambda i: runs[i])
    starts = [runs[i][0] for i in order]
    result = []
    for start, stop in parts:
        run = order[bisect_right(starts, start) - 1]
        offset = offsets[run] - runs[run][0]
        result.append((start + offset, stop + offset))
    return result


def one_behind_another(runs: Iterable[Rows]) -> list[Rows]:
    """Where the rows of each run lie in a tensor that has them all."""
    ends = [0, *accumulate(stop - start for start, stop in runs)]
    return list(pairwise(ends))


@lru_cache(maxsize=256)
def layout_of(kind: Kind, world: int, lengths: tuple[int, ...]) -> Layout:
    """Shares sequences of these lengths out among `world` ranks.

    "contiguous": each rank has one run of rows. "zigzag": the rows are cut into 2 world slices, of which rank r has
    those of number r and 2 world - 1 - r, so that all have as much work under a causal mask. "documents": each sequence
    is shared out in zigzag by itself, or stays whole where it is short, and where the ranks are balanced all the same.
    """
    if kind == "documents":
        return _documents(world, lengths)
    slices = 2 * world if kind == "zigzag" else world
    ends = [sum(lengths) * i // slices for i in range(slices + 1)]
    runs = list(pairwise(ends))
    calls = []
    for rank in range(world):
        own = [runs[rank], runs[slices - 1 - rank]] if kind == "zigzag" else [runs[rank]]
        calls.append(tuple(call for call in (_spans(run, lengths) for run in joined(own)) if call))
    return Layout(kind, lengths, tuple(calls))


def _spans(run: Rows, lengths: tuple[int, ...]) -> Call:
    """Those of a run of rows."""
    begins = begins_of(lengths)
    spans = []
    for sequence, (begin, end) in enumerate(pairwise(begins)):
        start, stop = max(run[0], begin), min(run[1], end)
        if start < stop:
            spans.append(Span(sequence, start - begin, stop - begin))
    return tuple(spans)


def divided(layout: Layout, parts: int) -> Layout:
    """The layout of `parts` times as many ranks, of which `parts` have the rows of one, one after another."""
    calls = []
    for rank in range(layout.world):
        ends = [layout.rows(rank) * i // parts for i in range(parts + 1)]
        calls += [tuple(_cut(layout.calls[rank], run)) for run in pairwise(ends)]
    return Layout(layout.kind, layout.lengths, tuple(calls))


def _cut(calls: Sequence[Call], run: Rows) -> Iterable[Call]:
    """What lies in a run of the rows of some calls."""
    row = 0
    for call in calls:
        spans = []
        for span in call:
            start, stop = max(run[0] - row, 0), min(run[1] - row, span.stop - span.start)
            if start < stop:
                spans.append(Span(span.sequence, span.start + start, span.start + stop))
            row += span.stop - span.start
        if spans:
            yield tuple(spans)


def causal_work(span: Span) -> int:
    """Keys that the queries of a span see under a causal mask, all together."""
    return (span.start + 1 + span.stop) * (span.stop - span.start) // 2


def imbalance(loads: Sequence[float]) -> float:
    """How much more than the mean the largest is; 0 where there is nothing."""
    return max(loads) * len(loads) / sum(loads) - 1 if sum(loads) else 0.0


def _documents(world: int, lengths: tuple[int, ...]) -> Layout:
    """With the longest documents that may stay whole, since spans shorter than a tile waste time."""
    for rows in (2 * world * _TILE, world * _TILE, world * _TILE // 2):
        layout = _with_whole(world, lengths, rows)
        work = [sum(map(causal_work, layout.spans(rank))) for rank in range(world)]
        rows_of = [layout.rows(rank) for rank in range(world)]
        if max(imbalance(work), imbalance(rows_of)) < _BALANCED - 1:
            return layout
    return _with_whole(world, lengths, 0)


def _with_whole(world: int, lengths: tuple[int, ...], longest: int) -> Layout:
    """Documents shorter than `longest` stay whole, and go to the ranks that have the least work so far."""
    first: list[list[Span]] = [[] for _ in range(world)]
    second: list[list[Span]] = [[] for _ in range(world)]
    load = [0] * world
    for number, length in enumerate(lengths):
        if length < longest:
            continue
        ends = [length * i // (2 * world) for i in range(2 * world + 1)]
        spans = [Span(number, start, stop) for start, stop in pairwise(ends)]
        for i in range(world):
            rank = (i + number) % world  # the rows that are left over go to other ranks each time
            head, tail = spans[i], spans[2 * world - 1 - i]
            if head.stop == tail.start:
                head, tail = Span(number, head.start, tail.stop), Span(number, tail.stop, tail.stop)
            first[rank] += [head] if head.start < head.stop else []
            second[rank] += [tail] if tail.start < tail.stop else []
            load[rank] += causal_work(head) + causal_work(tail)
    for number in sorted((n for n, x in enumerate(lengths) if 0 < x < longest), key=lambda n: -lengths[n]):
        rank = min(range(world), key=load.__getitem__)
        first[rank].append(Span(number, 0, lengths[number]))
        load[rank] += causal_work(first[rank][-1])
    calls = ([tuple(sorted(x)) for x in (a, b) if x] for a, b in zip(first, second, strict=True))
    return Layout("documents", lengths, tuple(map(tuple, calls)))
