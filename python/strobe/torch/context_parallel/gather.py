# SPDX-License-Identifier: Apache-2.0
"""Each rank fetches the keys and values that its queries see, and computes its rows as one process would.

The key heads are computed in one group or two, of which the second travels while the first is computed; in the
backward the gradients of a group travel to the ranks that have its keys while the next one is computed, or this rank's
own are added. They are sums over the ranks, in float32 and in the order of the ranks.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strobe._shapes import lse_shape, output_shape
from strobe.torch.context_parallel import exchange
from strobe.torch.context_parallel.exchange import Transfer
from strobe.torch.context_parallel.groups import first_heads
from strobe.torch.context_parallel.keys import KeyPlan, key_plan
from strobe.torch.context_parallel.layout import Rows, one_behind_another
from strobe.torch.context_parallel.parts import Heads
from strobe.torch.context_parallel.shared import PartBackward, SharedCall, compute, save


def _plan(call: SharedCall) -> KeyPlan:
    if "plan" not in call.memory:
        call.memory["plan"] = key_plan(call.layout, call.rank, call.options.sight)
    return call.memory["plan"]


def head_groups(heads_kv: int, heads_q: int, buffer_bytes: int, given: Any, backward: bool) -> list[Heads]:
    """Key heads that are computed together."""
    group = heads_q // max(heads_kv, 1)
    whole = not given.keys().isdisjoint(("bias", "dropout"))
    first = 0 if whole else first_heads(heads_kv, buffer_bytes, backward)
    return [Heads(start, stop, group) for start, stop in ((0, first), (first, heads_kv)) if start < stop]


def _groups_of(call: SharedCall, q: Tensor, k: Tensor, v: Tensor, backward: bool) -> list[Heads]:
    key = ("groups", q.shape, k.shape, v.shape, backward)
    if key not in call.memory:
        rows = call.layout.total * (q.shape[0] if call.batched else 1)  # of all ranks, whose groups must be the same
        row_bytes = (k.shape[-1] + v.shape[-1]) * k.shape[-2] * k.element_size()
        groups = head_groups(k.shape[-2], q.shape[-2], rows * row_bytes, call.options.given, backward)
        call.memory[key] = groups
    return call.memory[key]


Fetched = tuple[Heads, Tensor, Transfer]
"""Heads, a buffer for their keys and values, joined, and what fills it."""


def _fetch(call: SharedCall, k: Tensor, v: Tensor, groups: list[Heads]) -> list[Fetched]:
    """Starts to fetch the keys of all groups, in their order."""
    plan, fetched = _plan(call), []
    for heads in groups:
        batch = [k.shape[0]] if call.batched else []
        buffer = k.new_empty((plan.buffer_rows, *batch, heads.number * (k.shape[-1] + v.shape[-1])))
        own = (k, v) if heads.number == k.shape[-2] else (k[..., heads.of_keys, :], v[..., heads.of_keys, :])
        exchange.join_into(buffer, *own, call.batched, plan.own)
        fetched.append((heads, buffer, exchange.start(call.group, [(buffer, plan.sends)], [(buffer, plan.receives)])))
    return fetched


class GatherAttention(torch.autograd.Function):
    """(o, lse) of a SharedCall, this rank's q, k and v, and the options that may have gradients.

    `largest` is None, or written: the largest scores that this rank has seen, of sequences and heads.
    """

    @staticmethod
    def forward(
        ctx: Any, call: SharedCall, largest: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Any, sink: Any
    ) -> Any:
        fetched = _fetch(call, k, v, _groups_of(call, q, k, v, backward=False))
        o = q.new_empty(output_shape(q, v))
        lse = q.new_empty(lse_shape(q), dtype=torch.float32)
        for heads, buffer, transfer in fetched:
            transfer.wait()
            for launch in call.launches(_plan(call).calls, q):
                k_part, v_part = (launch.keys(x) for x in exchange.part(buffer, k, v))
                q_part, o_part = (launch.queries(x, heads) for x in (q, o))
                options = call.options_of(launch, heads, q)
                compute(launch, heads, (q_part, k_part, v_part), (o_part, launch.lse(lse, heads)), largest, options)
        save(ctx, call, q, k, v, o, lse)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        parts = PartBackward(ctx, d_o, d_lse)
        call, q, k, v = parts.call, parts.q, parts.k, parts.v
        dq = torch.empty_like(q, memory_format=torch.contiguous_format)
        gradients = _KeyGradients(call, k, v)
        for heads, buffer, transfer in _fetch(call, k, v, _groups_of(call, q, k, v, backward=True)):
            transfer.wait()
            computed: list[Tensor] = []
            for launch in call.launches(_plan(call).calls, q, backward=True):
                options = call.options_of(launch, heads, q)
                computed += parts.compute(launch, heads, options, buffer, launch.queries(dq, heads))
            gradients.exchange(heads, computed)
        return (None, None, dq, *gradients.total(), *parts.modifiers())


@dataclass(frozen=True)
class _Part:
    """Of the gradients of a rank's keys and values what one call of a rank has for them."""

    peer: int
    joined: Tensor
    rows: tuple[Rows, ...]
    """Of the rank; those of `joined` are one behind another."""
    heads: Heads


class _KeyGradients:
    """Of this rank's keys and values: parts that arrive from the ranks whose queries see them, and their sum."""

    def __init__(self, call: SharedCall, k: Tensor, v: Tensor) -> None:
        self._call, self._k, self._v = call, k, v
        self._parts: list[_Part] = []
        self._on_the_way: dict[Heads, Transfer] = {}

    def exchange(self, heads: Heads, computed: list[Tensor]) -> None:
        """Starts to send what this rank's calls have for the keys of others, and to receive what others have."""
        plan, rank, world = _plan(self._call), self._call.rank, self._call.layout.world
        sent, received = [], []
        for joined, runs in zip(computed, plan.returns, strict=True):
            sent.append((joined, [() if peer == rank else x for peer, x in enumerate(runs)]))
            self._parts += [
                _Part(rank, joined[slice(*place)], (own,), heads)
                for place, own in zip(runs[rank], plan.collects[rank][len(sent) - 1], strict=True)
            ]
        columns = heads.number * (self._k.shape[-1] + self._v.shape[-1])
        batch = [self._k.shape[0]] if self._call.batched else []
        for peer, calls in enumerate(plan.collects):
            for rows in calls if peer != rank else ():
                places = one_behind_another(rows)
                joined = self._k.new_empty((places[-1][1] if places else 0, *batch, columns))
                received.append((joined, [places if other == peer else () for other in range(world)]))
                self._parts.append(_Part(peer, joined, rows, heads))
        self._on_the_way[heads] = exchange.start(self._call.group, sent, received)

    def total(self) -> tuple[Tensor, Tensor]:
        """The gradients of k and v, summed in one order: this rank's calls from the last, then the ranks in theirs."""
        dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (self._k, self._v))
        rows_first = [x.transpose(0, 1) if self._call.batched else x for x in (dk, dv)]
        for heads, transfer in self._on_the_way.items():
            sums = exchange.part(self._sum([x for x in self._parts if x.heads == heads], transfer), self._k, self._v)
            for gradient, sum_ in zip(rows_first, sums, strict=True):
                gradient[..., heads.of_keys, :] = sum_
        return dk, dv

    def _sum(self, parts: list[_Part], transfer: Transfer) -> Tensor:
        """Of one group of heads, joined, in float32. This rank's own are added while the others' travel."""
        rows, filled = self._call.layout.rows(self._call.rank), 0
        total = torch.empty((rows, *parts[0].joined.shape[1:]), dtype=torch.float32, device=self._k.device)
        own = [x for x in reversed(parts) if x.peer == self._call.rank]
        others = [x for x in parts if x.peer != self._call.rank]
        last = own[: len(_plan(self._call).own)]  # a rank's last call sees all its keys, but for windows
        if {x.rows[0] for x in last} == {run for run, _ in _plan(self._call).own}:
            for x in last:
                total[slice(*x.rows[0])] = x.joined
            filled = len(last)
        else:
            total.zero_()
        for x in own[filled:]:
            _add(total, x)
        transfer.wait()
        for x in others:
            _add(total, x)
        return total


def _add(total: Tensor, part: _Part) -> None:
    for run, place in zip(part.rows, one_behind_another(part.rows), strict=True):
        total[slice(*run)] += part.joined[slice(*place)]
