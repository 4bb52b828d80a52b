# SPDX-License-Identifier: Apache-2.0
"""The gradients of a rank's keys and values: parts of several calls of several ranks, and their sum.

Sums are float32 and in one order: this rank's calls from the last, then those of the other ranks in theirs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from strobe.torch.context_parallel import exchange
from strobe.torch.context_parallel.copies import Copies
from strobe.torch.context_parallel.keys import KeyPlan
from strobe.torch.context_parallel.layout import Rows, one_behind_another
from strobe.torch.context_parallel.parts import Heads
from strobe.torch.context_parallel.shared import SharedCall

FEW_ROWS = 512
"""Of a run, in the mean: longer runs take kernels of their own, which are no shorter than the host's time for them."""


class _Arriving(Protocol):
    def wait(self) -> None: ...


class _Part(NamedTuple):
    """What one call of a rank has for the gradients of this rank's keys and values."""

    rank: int
    call: int
    rows: tuple[Rows, ...]
    """Of this rank."""
    places: tuple[Rows, ...]
    """Of the call's tensor, as many rows each."""


class _Segment(NamedTuple):
    """A run of this rank's rows, and the parts that have it."""

    rows: Rows
    parts: tuple[tuple[_Part, Rows], ...]
    """And where in the part's tensor."""


def _parts(plan: KeyPlan, rank: int) -> Iterable[_Part]:
    """In the order in which they are added."""
    own = plan.collects[rank]
    for call in reversed(range(len(own))):
        yield _Part(rank, call, own[call], plan.returns[call][rank])
    for other, calls in enumerate(plan.collects):
        for call, rows in enumerate(calls if other != rank else ()):
            yield _Part(other, call, rows, tuple(one_behind_another(rows)))


def _segments(plan: KeyPlan, rank: int, rows: int) -> list[_Segment]:
    parts = list(_parts(plan, rank))
    ends = sorted({0, rows, *(end for part in parts for run in part.rows for end in run)})
    segments: list[_Segment] = []
    for start, stop in pairwise(ends):
        found = []
        for part in parts:
            for run, place in zip(part.rows, part.places, strict=True):
                if run[0] <= start and stop <= run[1]:
                    found.append((part, (place[0] + start - run[0], place[0] + stop - run[0])))
        segment = _Segment((start, stop), tuple(found))
        if segments and _follows(segments[-1], segment):
            before = segments.pop()
            places = [(a, b) for (_, (a, _)), (_, (_, b)) in zip(before.parts, found, strict=True)]
            found = [(part, place) for (part, _), place in zip(found, places, strict=True)]
            segment = _Segment((before.rows[0], stop), tuple(found))
        segments.append(segment)
    return segments


def _follows(before: _Segment, segment: _Segment) -> bool:
    """Whether both have the same parts, in each of which the one lies behind the other."""
    return len(before.parts) == len(segment.parts) and all(
        a == b and x[1] == y[0] for (a, x), (b, y) in zip(before.parts, segment.parts, strict=True)
    )


@dataclass(frozen=True)
class _Group:
    """Of a group of heads: each part's tensor, keys and values joined, and what they wait for."""

    heads: Heads
    tensors: dict[tuple[int, int], Tensor]
    arriving: _Arriving


class KeyGradients:
    """Of one backward. With `copies` the parts are written into the memory of the ranks whose keys they are of."""

    def __init__(self, call: SharedCall, plan: KeyPlan, copies: Copies | None, k: Tensor, v: Tensor) -> None:
        self._call, self._plan, self._copies, self._k, self._v = call, plan, copies, k, v
        self._groups: list[_Group] = []

    def send(self, heads: Heads, computed: list[Tensor]) -> None:
        """Starts to send what this rank's calls have for the keys of others, and to receive what others have."""
        rank = self._call.rank
        tensors = {(rank, call): joined for call, joined in enumerate(computed)}
        if self._copies is None:
            arriving: _Arriving = self._messages(heads, computed, tensors)
        else:
            self._copies.give(computed, heads)
            arriving = self._copies
            for other, calls in enumerate(self._plan.collects):
                for call in range(len(calls)) if other != rank else ():
                    tensors[other, call] = self._copies.arrivals(heads, other, call)
        self._groups.append(_Group(heads, tensors, arriving))

    def _messages(
        self, heads: Heads, computed: list[Tensor], tensors: dict[tuple[int, int], Tensor]
    ) -> exchange.Transfer:
        plan, rank, world = self._plan, self._call.rank, self._call.layout.world
        sent, received = [], []
        for joined, runs in zip(computed, plan.returns, strict=True):
            sent.append((joined, [() if peer == rank else x for peer, x in enumerate(runs)]))
        columns = heads.number * (self._k.shape[-1] + self._v.shape[-1])
        batch = [self._k.shape[0]] if self._call.batched else []
        for peer, calls in enumerate(plan.collects):
            for call, rows in enumerate(calls if peer != rank else ()):
                places = one_behind_another(rows)
                joined = self._k.new_empty((places[-1][1] if places else 0, *batch, columns))
                received.append((joined, [places if other == peer else () for other in range(world)]))
                tensors[peer, call] = joined
        return exchange.start(self._call.group, sent, received)

    def total(self) -> tuple[Tensor, Tensor]:
        """The gradients of k and v. This rank's own parts are added while those of the others travel."""
        dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (self._k, self._v))
        rows_first = [x.transpose(0, 1) if self._call.batched else x for x in (dk, dv)]
        rank, rows = self._call.rank, self._call.layout.rows(self._call.rank)
        if "segments" not in self._call.memory:
            self._call.memory["segments"] = _segments(self._plan, rank, rows)
        segments: list[_Segment] = self._call.memory["segments"]
        sums_of = _Sums if rows >= FEW_ROWS * len(segments) else _ManySums
        sums = [sums_of(group, segments, rank, rows_first, self._k, self._v) for group in self._groups]
        for of_group in sums:
            of_group.add_own()
        for group, of_group in zip(self._groups, sums, strict=True):
            group.arriving.wait()
            of_group.finish()
        return dk, dv


class _Sums:
    """Of a group of heads. Where a row has one part or two, no float32 sums are written: the result is the same."""

    def __init__(
        self, group: _Group, segments: list[_Segment], rank: int, results: list[Tensor], k: Tensor, v: Tensor
    ) -> None:
        self._k, self._v = k, v
        self._results = [x[..., group.heads.of_keys, :] for x in results]
        self._totals: dict[Rows, Tensor] = {}
        self._parts: list[tuple[Rows, list[Tensor], list[Tensor]]] = []
        for segment in segments:
            own: list[Tensor] = []
            others: list[Tensor] = []
            for part, place in segment.parts:
                of_rank = own if part.rank == rank else others
                of_rank.append(group.tensors[part.rank, part.call][slice(*place)])
            self._parts.append((segment.rows, own, others))

    def add_own(self) -> None:
        """This rank's parts; all of the result where no other rank has one."""
        for rows, own, others in self._parts:
            if len(own) + len(others) > 2:
                self._totals[rows] = _total(own, (own or others)[0])
            elif not others:
                self._write(rows, own)

    def finish(self) -> None:
        """The other ranks' parts."""
        for rows, own, others in self._parts:
            total = self._totals.get(rows)
            if total is not None:
                for x in others[:-1]:
                    total += x
                self._write(rows, [total, *others[-1:]])
            elif others:
                self._write(rows, own + others)

    def _write(self, rows: Rows, parts: list[Tensor]) -> None:
        """The sum of up to two."""
        targets = [x[slice(*rows)] for x in self._results]
        if not parts:
            for target in targets:
                target.zero_()
            return
        for target, *of_parts in zip(targets, *(exchange.part(x, self._k, self._v) for x in parts), strict=True):
            if len(of_parts) == 1:
                target.copy_(of_parts[0])
            else:
                torch.add(*of_parts, out=target)


class _ManySums(_Sums):
    """The same of many runs of rows, as documents have them: few kernels, each of all runs."""

    def add_own(self) -> None:
        """This rank's parts."""
        (*rows, heads, size), size_v = self._results[0].shape, self._v.shape[-1]
        columns = heads * (size + size_v)
        self._total = torch.empty((*rows, columns), dtype=torch.float32, device=self._k.device)
        self._runs = runs = [self._total[slice(*run)] for run, _, _ in self._parts]
        for run, (_, own, _) in zip(runs, self._parts, strict=True):
            if not own:
                run.zero_()
        begun = [(run, own[0]) for run, (_, own, _) in zip(runs, self._parts, strict=True) if own]
        torch._foreach_copy_([run for run, _ in begun], [x for _, x in begun])
        self._add([own[1:] for _, own, _ in self._parts])

    def finish(self) -> None:
        """The other ranks' parts."""
        self._add([others for _, _, others in self._parts])
        for result, x in zip(self._results, exchange.part(self._total, self._k, self._v), strict=True):
            result.copy_(x)

    def _add(self, parts: list[list[Tensor]]) -> None:
        """To each run its parts, one after another."""
        for number in range(max(map(len, parts))):
            of_runs = [(run, x[number]) for run, x in zip(self._runs, parts, strict=True) if len(x) > number]
            added = [torch.empty_like(run) for run, _ in of_runs]
            torch._foreach_copy_(added, [x for _, x in of_runs])
            torch._foreach_add_([run for run, _ in of_runs], added)


def _total(parts: list[Tensor], like: Tensor) -> Tensor:
    """The float32 sum of parts, each of the shape of `like`."""
    total = torch.empty(like.shape, dtype=torch.float32, device=like.device)
    if not parts:
        total.zero_()
    for x in parts[:1]:
        total.copy_(x)
    for x in parts[1:]:
        total += x
    return total
