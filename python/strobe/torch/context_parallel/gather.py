# SPDX-License-Identifier: Apache-2.0
"""Each rank fetches the keys and values that its queries see, and computes its rows as one process would.

The key heads are computed in one group or two, of which the second travels while the first is computed; in the
backward the gradients of a group travel to the ranks that have its keys while the next one is computed, or this rank's
own are added. In the forward the launch of the most work is first of each group, and others fill its end; some of
those that see this rank's keys alone run while the first group travels.
"""

from collections.abc import Iterable
from itertools import cycle, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from strobe._shapes import lse_shape, output_shape
from strobe.torch.context_parallel import exchange
from strobe.torch.context_parallel.copies import Copies, copies_of
from strobe.torch.context_parallel.exchange import Transfer
from strobe.torch.context_parallel.groups import group_ends
from strobe.torch.context_parallel.key_gradients import KeyGradients
from strobe.torch.context_parallel.keys import KeyPlan, key_plan
from strobe.torch.context_parallel.launches import Launch, keys_of, longest_first, pieces
from strobe.torch.context_parallel.parts import Heads
from strobe.torch.context_parallel.shared import PartBackward, SharedCall, compute, save
from strobe.torch.context_parallel.streams import BACKWARD, LONG, PIECES, Lanes
from strobe.torch.context_parallel.views import View, view_of


def _plan(call: SharedCall) -> KeyPlan:
    if "plan" not in call.memory:
        call.memory["plan"] = key_plan(call.layout, call.rank, call.options.sight)
    return call.memory["plan"]


def _groups_of(call: SharedCall, copied: bool, q: Tensor, k: Tensor, v: Tensor, backward: bool) -> list[Heads]:
    """Key heads that are computed together."""
    key = ("groups", copied, q.shape, k.shape, v.shape, backward)
    if key not in call.memory:
        heads_kv = k.shape[-2]
        rows = call.layout.total * (q.shape[0] if call.batched else 1)  # of all ranks, whose groups must be the same
        row_bytes = (k.shape[-1] + v.shape[-1]) * heads_kv * k.element_size()
        ends = [heads_kv] if _is_whole(call) else group_ends(heads_kv, rows * row_bytes, backward, copied)
        group = q.shape[-2] // max(heads_kv, 1)
        call.memory[key] = [Heads(start, stop, group) for start, stop in pairwise([0, *ends]) if start < stop]
    return call.memory[key]


_AHEAD = 2  # pieces: about as long as the first group takes to come


def _is_whole(call: SharedCall) -> bool:
    """Whether a launch has all heads."""
    return not call.options.given.keys().isdisjoint(("bias", "dropout"))


class _Step(NamedTuple):
    """A launch of a forward, and where its rows and heads lie in q, out and lse."""

    group: int
    launch: Launch
    heads: Heads
    """Of the group."""
    lane: int
    fetches: bool
    """The first of its group, for which the keys of others come. Others wait until it may begin, so that they are
    behind it, but for those that see this rank's keys alone and run ahead."""
    waits: bool
    """It is the first of these on its lane."""
    options: dict[str, Any]
    """Its tensors live as long as the steps: other streams read them."""
    q: View
    o: View
    lse: View


def _steps(call: SharedCall, groups: list[Heads], q: Tensor, v: Tensor, overlap: bool) -> list[_Step]:
    """The launches of a forward in their order."""
    key = ("steps", overlap, q.device, q.shape, q.stride(), v.shape[-1], *groups)
    if key in call.memory:
        return call.memory[key]
    o = q.new_empty(output_shape(q, v), device="meta")  # strides alone matter, as of lse
    lse = q.new_empty(lse_shape(q), device="meta")
    steps: list[_Step] = []
    in_turn = {False: cycle(LONG if overlap else (0,)), True: cycle(PIECES)}
    seen: set[tuple[int, int]] = set()
    for number, launch, heads, is_piece, is_ahead in _in_order(call, groups, q, overlap):
        parts = (launch.queries(q, heads), launch.queries(o, heads), launch.lse(lse, heads))
        views = (view_of(part, x) for part, x in zip(parts, (q, o, lse), strict=True))
        lane = next(in_turn[is_piece])
        fetches = not is_ahead and all(step.group != number or not step.fetches for step in steps)
        waits = not is_ahead and not fetches and (number, lane) not in seen
        if not is_ahead:
            seen.add((number, lane))
        options = call.options_of(launch, heads, q)
        steps.append(_Step(number, launch, heads, lane, fetches, waits, options, *views))
    if not call.options.has_tensors:  # which the tape alone keeps
        call.memory[key] = steps
    return steps


def _in_order(
    call: SharedCall, groups: list[Heads], q: Tensor, overlap: bool
) -> Iterable[tuple[int, Launch, Heads, bool, bool]]:
    """The number of a group of heads, a launch, heads of the group, whether they are a piece, and whether it is ahead
    of the keys of others."""
    plan = _plan(call)
    launches = longest_first(call.launches(plan.calls, q))
    in_pieces = overlap and q.is_cuda and not _is_whole(call)
    ahead: list[tuple[int, Launch, Heads, bool, bool]] = []
    behind = [(number, launch, heads, False, False) for launch in launches[:1] for number, heads in enumerate(groups)]
    for launch in launches[1:]:
        is_own = in_pieces and all(map(plan.is_own, launch.calls))
        for number, group in enumerate(groups):
            for heads in pieces(launch, group, q) if in_pieces else [group]:
                if is_own and len(ahead) < _AHEAD:
                    ahead.append((number, launch, heads, True, True))
                else:
                    behind.append((number, launch, heads, in_pieces, False))
    return ahead + behind


class Messages:
    """Of one pass of a call: how keys and gradients move by the process group's own means."""

    is_copied = False

    def __init__(self, call: SharedCall, plan: KeyPlan, k: Tensor, v: Tensor) -> None:
        self._call, self._plan, self._k, self._v = call, plan, k, v
        self._fetched: list[tuple[Tensor, Transfer]] = []

    def start(self, groups: list[Heads]) -> None:
        """Begins to fetch the keys and values of all groups, in their order."""
        plan, k, v = self._plan, self._k, self._v
        self._groups = groups
        for heads in groups:
            batch = [k.shape[0]] if self._call.batched else []
            buffer = k.new_empty((plan.buffer_rows, *batch, heads.number * (k.shape[-1] + v.shape[-1])))
            own = (k, v) if heads.number == k.shape[-2] else (k[..., heads.of_keys, :], v[..., heads.of_keys, :])
            exchange.join_into(buffer, *own, self._call.batched, plan.own)
            transfer = exchange.start(self._call.group, [(buffer, plan.sends)], [(buffer, plan.receives)])
            self._fetched.append((buffer, transfer))

    def fetched(self, number: int, stream: torch.cuda.Stream | None = None) -> Tensor:
        """The keys and values of a group, joined, which work that follows on the current stream sees."""
        buffer, transfer = self._fetched[number]
        transfer.wait()  # the first time
        return buffer

    def keys(self, number: int, launch: Launch, heads: Heads) -> tuple[Tensor, Tensor]:
        """Those of a group as a launch of some of its heads takes them."""
        return keys_of(launch, self._fetched[number][0], self._k, self._v, heads.within(self._groups[number]))


def _transport(call: SharedCall, k: Tensor, v: Tensor) -> Messages | Copies:
    return copies_of(call, _plan(call), k, v) or Messages(call, _plan(call), k, v)


class GatherAttention(torch.autograd.Function):
    """(o, lse) of a SharedCall, this rank's q, k and v, and the options that may have gradients.

    `largest` is None, or written: the largest scores that this rank has seen, of sequences and heads.
    """

    @staticmethod
    def forward(
        ctx: Any, call: SharedCall, largest: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Any, sink: Any
    ) -> Any:
        transport = _transport(call, k, v)
        groups = _groups_of(call, transport.is_copied, q, k, v, backward=False)
        transport.start(groups)
        overlap = q.is_cuda and largest is None and (transport.is_copied or len(groups) == 1)
        steps = _steps(call, groups, q, v, overlap)
        if overlap and not transport.is_copied:
            transport.fetched(0)
        lanes = Lanes(q, {step.lane for step in steps})  # which see options and, of messages, keys
        if groups:
            transport.fetched(0)  # behind this on the current stream, which has the first launch of them, not on others
        o = q.new_empty(output_shape(q, v))
        lse = q.new_empty(lse_shape(q), dtype=torch.float32)
        begun: dict[int, torch.cuda.Event | None] = {}
        for step in steps:
            stream = lanes.stream(step.lane)
            if step.fetches:
                transport.fetched(step.group, stream)
                begun[step.group] = lanes.mark(step.lane)
            elif step.waits:
                lanes.wait(step.lane, begun[step.group])
            options = step.options if stream is None else step.options | {"stream": stream.cuda_stream}
            keys = transport.keys(step.group, step.launch, step.heads)
            results = step.o.of(o), step.lse.of(lse)
            compute(step.launch, step.heads, (step.q.of(q), *keys), results, largest, options)
        lanes.join()
        save(ctx, call, q, k, v, o, lse)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        parts = PartBackward(ctx, d_o, d_lse)
        call, q, k, v = parts.call, parts.q, parts.k, parts.v
        transport = _transport(call, k, v)
        groups = _groups_of(call, transport.is_copied, q, k, v, backward=True)
        transport.start(groups)
        dq = torch.empty_like(q, memory_format=torch.contiguous_format)
        gradients = KeyGradients(call, _plan(call), transport if isinstance(transport, Copies) else None, k, v)
        launches = call.launches(_plan(call).calls, q, backward=True)
        for number, heads in enumerate(groups):
            buffer = transport.fetched(number)
            computed = [launch.gradients(buffer) for launch in launches]
            options_of = [call.options_of(launch, heads, q) for launch in launches]
            order = [launches.index(launch) for launch in longest_first(launches)]
            beside = dict(zip(order, cycle(BACKWARD if q.is_cuda and parts.can_overlap() else (0,))))
            lanes = Lanes(q, beside.values())  # which see all that was made above
            for index in order:
                launch, (joined, _) = launches[index], computed[index]
                keys = transport.keys(number, launch, heads)
                stream = lanes.stream(beside[index])
                parts.compute(launch, heads, options_of[index], joined, keys, launch.queries(dq, heads), stream)
            lanes.join()
            gradients.send(heads, [gradient for _, by_call in computed for gradient in by_call])
        return (None, None, dq, *gradients.total(), *parts.modifiers())
