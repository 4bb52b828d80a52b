# SPDX-License-Identifier: Apache-2.0
"""Each rank fetches the keys and values that its queries see, and computes its rows as one process would.

The key heads are computed in one group or two, of which the second travels while the first is computed; in the
backward the gradients of a group travel to the ranks that have its keys while the next one is computed, or this rank's
own are added. In the forward the launch of the most work is first of each group, and others fill its end; some of
those that see this rank's keys alone run while the first group travels.
"""

from itertools import pairwise
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
from strobe.torch.context_parallel.streams import InTurn


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


_AHEAD = 2  # pieces: about as long as the first group takes to come, and the host to ask for it


def _is_whole(call: SharedCall) -> bool:
    """Whether a launch has all heads."""
    return not call.options.given.keys().isdisjoint(("bias", "dropout"))


class _Step(NamedTuple):
    """A launch of a forward."""

    group: int
    launch: Launch
    heads: Heads
    """Of the group."""
    is_piece: bool
    """It fills what others leave."""
    is_ahead: bool
    """It sees this rank's keys alone, and runs before those of others are there."""


def _in_order(call: SharedCall, groups: list[Heads], q: Tensor, overlap: bool, copied: bool) -> list[_Step]:
    """The launches of a forward."""
    key = ("steps", overlap, copied, q.shape, *groups)
    if key in call.memory:
        return call.memory[key]
    plan = _plan(call)
    first, *others = longest_first(call.launches(plan.calls, q)) or [None]
    in_pieces = overlap and q.is_cuda and not _is_whole(call)
    steps = [_Step(number, first, group, False, False) for number, group in enumerate(groups) if first]
    ahead: list[_Step] = []
    for launch in others:
        is_own = copied and in_pieces and all(map(plan.is_own, launch.calls))
        for number, group in enumerate(groups):
            for heads in pieces(launch, group, q) if in_pieces else [group]:
                is_ahead = is_own and len(ahead) < _AHEAD
                (ahead if is_ahead else steps).append(_Step(number, launch, heads, in_pieces, is_ahead))
    call.memory[key] = ahead + steps
    return call.memory[key]


class Messages:
    """Of one pass of a call: how keys and gradients move by the process group's own means."""

    is_copied = False

    def __init__(self, call: SharedCall, plan: KeyPlan, k: Tensor, v: Tensor) -> None:
        self._call, self._plan, self._k, self._v = call, plan, k, v
        self._fetched: list[tuple[Tensor, Transfer]] = []

    def start(self, groups: list[Heads]) -> None:
        """Begins to fetch the keys and values of all groups, in their order."""
        plan, k, v = self._plan, self._k, self._v
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

    def keys(self, number: int, launch: Launch) -> tuple[Tensor, Tensor]:
        """Those of a group as a launch takes them."""
        return keys_of(launch, self._fetched[number][0], self._k, self._v)


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
        o = q.new_empty(output_shape(q, v))
        lse = q.new_empty(lse_shape(q), dtype=torch.float32)
        overlap = largest is None and (transport.is_copied or len(groups) == 1)
        steps = _in_order(call, groups, q, overlap, transport.is_copied)
        options_of = [call.options_of(step.launch, step.heads, q) for step in steps]  # live as long as the streams
        if overlap and not transport.is_copied:
            transport.fetched(0)
        streams = InTurn(q, overlap)  # which see options and, of messages, keys
        for (number, launch, heads, is_piece, is_ahead), options in zip(steps, options_of, strict=True):
            stream = streams.next(is_piece)
            if not is_ahead:
                transport.fetched(number, stream)
            if stream is not None:
                options["stream"] = stream.cuda_stream
            k_part, v_part = transport.keys(number, launch)
            if heads != groups[number]:
                first = heads.first - groups[number].first
                k_part, v_part = (x.narrow(-2, first, heads.number) for x in (k_part, v_part))
            q_part, o_part = launch.queries(q, heads), launch.queries(o, heads)
            compute(launch, heads, (q_part, k_part, v_part), (o_part, launch.lse(lse, heads)), largest, options)
        streams.join()
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
        for number, heads in enumerate(groups):
            buffer = transport.fetched(number)
            computed: list[Tensor] = []
            for launch in call.launches(_plan(call).calls, q, backward=True):
                options = call.options_of(launch, heads, q)
                keys = transport.keys(number, launch)
                computed += parts.compute(launch, heads, options, buffer, keys, launch.queries(dq, heads))
            gradients.send(heads, computed)
        return (None, None, dq, *gradients.total(), *parts.modifiers())
