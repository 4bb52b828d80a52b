# SPDX-License-Identifier: Apache-2.0
"""Keys and values go round the ranks; each computes its queries with those that are there, and merges the results.

A rank never has the keys of more than two others. Those of the next step travel while a step is computed; in the
backward their gradients follow them, to which each rank adds its own, in float32, and which the last one sends home.

Source: Liu et al., "Ring Attention with Blockwise Transformers" (2023).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from strobe import _core
from strobe._shapes import lse_shape, output_shape
from strobe.torch.context_parallel import exchange
from strobe.torch.context_parallel.exchange import Transfer, rows_second
from strobe.torch.context_parallel.keys import KeyCall, Sight, key_call
from strobe.torch.context_parallel.launches import Launch, keys_of
from strobe.torch.context_parallel.layout import Call, Layout, Rows, one_behind_another
from strobe.torch.context_parallel.parts import Heads
from strobe.torch.context_parallel.shared import PartBackward, SharedCall, compute, save

Steps = tuple[tuple[KeyCall, ...], ...]
"""What a rank computes with the keys of rank (rank - step) modulo world, by step."""


@lru_cache(maxsize=256)
def ring_steps(layout: Layout, rank: int, sight: Sight) -> Steps:
    """As many as any rank needs to see all its keys."""
    world = layout.world
    last = max(step for step in range(world) if step == 0 or any(_step(layout, x, step, sight) for x in range(world)))
    return tuple(_step(layout, rank, step, sight) for step in range(last + 1))


@lru_cache(maxsize=4096)
def _step(layout: Layout, rank: int, step: int, sight: Sight) -> tuple[KeyCall, ...]:
    """One for each call of the rank and each of the rank whose keys are there, where the one sees any of the other."""
    source = (rank - step) % layout.world
    calls = []
    for rows, queries in zip(layout.rows_of_calls(rank), layout.calls[rank], strict=True):
        for places, keys in zip(layout.rows_of_calls(source), layout.calls[source], strict=True):
            call = _call(layout, sight, rows, queries, places, keys)
            if call is not None:
                calls.append(call)
    return tuple(calls)


def _call(layout: Layout, sight: Sight, rows: Rows, queries: Call, places: Rows, keys: Call) -> KeyCall | None:
    """Of queries with keys whose rows lie at `places` of the tensors that are there; None where they see none."""
    offsets = one_behind_another((span.start, span.stop) for span in keys)
    there = {span.sequence: (span, places[0] + offset) for span, (offset, _) in zip(keys, offsets, strict=True)}
    runs: list[Rows] = []
    begins: list[int | None] = []
    for span in queries:
        first, stop = sight.keys(span, layout.lengths[span.sequence])
        other, offset = there.get(span.sequence, (span, 0))
        first, stop = max(first, other.start), min(stop, other.stop)
        sees = span.sequence in there and first < stop
        runs.append((first, stop) if sees else (span.stop, span.stop))
        begins.append(offset + first - other.start if sees else None)
    end = next((x for x in begins if x is not None), None)
    if end is None:
        return None
    found = []
    for begin, (first, stop) in zip(begins, runs, strict=True):
        start = end if begin is None else begin  # spans that see nothing have no keys, behind those of the one before
        end = start + stop - first
        found.append((start, end))
    return key_call(rows, queries, tuple(runs), found)


def _steps(call: SharedCall) -> Steps:
    return ring_steps(call.layout, call.rank, call.options.sight)


def _source(call: SharedCall, step: int) -> int:
    """The rank whose keys are here."""
    return (call.rank - step) % call.layout.world


def _pass(call: SharedCall, sent: Tensor, to: int, of: int, rows: int) -> tuple[Tensor, Transfer]:
    """Starts to send a tensor to a rank, and to receive one with so many rows from another."""
    received = sent.new_empty((rows, *sent.shape[1:]))
    world = range(call.layout.world)

    def only(x: Tensor, rank: int) -> list[Any]:
        return [(x, [[(0, len(x))] if peer == rank else [] for peer in world])]

    return received, exchange.start(call.group, only(sent, to), only(received, of))


def _rounds(call: SharedCall, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each step with the keys and values that are there, joined; the next ones are on their way meanwhile."""
    there, world, steps = exchange.join(k, v, call.batched), call.layout.world, len(_steps(call))
    for step in range(steps):
        if step + 1 == steps:
            yield step, there
            return
        rows = call.layout.rows(_source(call, step + 1))
        coming, transfer = _pass(call, there, (call.rank + 1) % world, (call.rank - 1) % world, rows)
        yield step, there
        transfer.wait()
        there = coming


def _options(call: SharedCall, launch: Launch, step: int, q: Tensor, heads: Heads) -> dict[str, Any]:
    """Of a part. A row's sink belongs to one of its parts: the first of those in which its rank meets its own keys."""
    options, (part,) = call.options_of(launch, heads, q), launch.calls
    if step > 0 or part is not next(x for x in _steps(call)[0] if x.rows == part.rows):
        options.pop("sink", None)
    return options


class _Merged:
    """What has been computed of some rows so far, in float32."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor]] = []

    def add(self, o: Tensor, lse: Tensor) -> None:
        self.parts.append((o.float(), lse))
        if len(self.parts) > 1:
            merged, merged_lse = torch.empty_like(self.parts[0][0]), torch.empty_like(lse)
            _core.merge([x for x, _ in self.parts], [x for _, x in self.parts], merged, merged_lse)
            self.parts = [(merged, merged_lse)]


class RingAttention(torch.autograd.Function):
    """As GatherAttention."""

    @staticmethod
    def forward(
        ctx: Any, call: SharedCall, largest: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Any, sink: Any
    ) -> Any:
        steps = _steps(call)
        heads = Heads(0, k.shape[-2], q.shape[-2] // k.shape[-2])
        merged = {rows: _Merged() for rows in call.layout.rows_of_calls(call.rank)}
        for step, joined in _rounds(call, k, v):
            for part in steps[step]:
                (launch,) = call.launches([part], q)
                k_part, v_part = keys_of(launch, joined, k, v)
                q_part = launch.queries(q, heads)
                o_part = q.new_empty(output_shape(q_part, v_part))
                lse_part = q.new_empty(lse_shape(q_part), dtype=torch.float32)
                options = _options(call, launch, step, q, heads)
                compute(launch, heads, (q_part, k_part, v_part), (o_part, lse_part), largest, options)
                merged[part.rows].add(o_part, lse_part)
        o = q.new_empty(output_shape(q, v))
        lse = q.new_empty(lse_shape(q), dtype=torch.float32)
        for part in steps[0]:
            (launch,), ((o_rows, lse_rows),) = call.launches([part], q), merged[part.rows].parts
            launch.queries(o, heads).copy_(o_rows)
            launch.lse(lse, heads).copy_(lse_rows)
        save(ctx, call, q, k, v, o, lse)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        parts = PartBackward(ctx, d_o, d_lse)
        call, q, k, v = parts.call, parts.q, parts.k, parts.v
        heads = Heads(0, k.shape[-2], q.shape[-2] // k.shape[-2])
        total = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        sums, steps = _Sums(call), _steps(call)
        for step, joined in _rounds(call, k, v):
            added = torch.zeros(joined.shape, dtype=torch.float32, device=joined.device)
            for part in steps[step]:
                (launch,) = call.launches([part], q)
                dq = torch.empty_like(launch.queries(q, heads), memory_format=torch.contiguous_format)
                keys = keys_of(launch, joined, k, v)
                gradients, (gradient,) = launch.gradients(joined)
                parts.compute(launch, heads, _options(call, launch, step, q, heads), gradients, keys, dq)
                launch.queries(total, heads).add_(dq)
                for place in part.places():
                    added[slice(*part.buffer)][slice(*place)] += gradient[slice(*place)]
            sums.add(step, added)
        dk, dv = exchange.part(sums.home(len(steps)).to(k.dtype), k, v)
        return (
            *(None, None, total.to(q.dtype), rows_second(dk, call.batched), rows_second(dv, call.batched)),
            *parts.modifiers(),
        )


class _Sums:
    """The gradients of keys and values, which go round behind them."""

    def __init__(self, call: SharedCall) -> None:
        self.call = call
        self.sums: Tensor | None = None
        self.transfer: Transfer | None = None

    def add(self, step: int, added: Tensor) -> None:
        """This rank's share of those of the keys that are here in a step; passes them on."""
        if self.sums is not None and self.transfer is not None:
            self.transfer.wait()
            added = self.sums.add_(added)
        world, rank = self.call.layout.world, self.call.rank
        if step + 1 < len(_steps(self.call)):
            rows = self.call.layout.rows(_source(self.call, step + 1))
            self.sums, self.transfer = _pass(self.call, added, (rank + 1) % world, (rank - 1) % world, rows)
        else:
            self.sums = added

    def home(self, steps: int) -> Tensor:
        """Those of this rank's own keys, from the rank where they were last."""
        assert self.sums is not None
        if steps == 1:
            return self.sums
        world, rank = self.call.layout.world, self.call.rank
        rows = self.call.layout.rows(rank)
        own, transfer = _pass(self.call, self.sums, _source(self.call, steps - 1), (rank + steps - 1) % world, rows)
        transfer.wait()
        return own
