# SPDX-License-Identifier: Apache-2.0
"""Each rank fetches the keys and values that its queries see, and computes its rows as one process would.

The key heads are computed in two or three groups, each of which travels while the one before it is computed; in the
backward the gradients of a group travel to the ranks that have its keys while the next one is computed. They are sums
over the ranks, in float32 and in the order of the ranks.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed

from strobe import _core
from strobe._frameworks import framework_of
from strobe._shapes import lse_shape, output_shape
from strobe.torch import ops
from strobe.torch.autograd import no_second_derivative
from strobe.torch.context_parallel import exchange
from strobe.torch.context_parallel.exchange import Transfer, rows_first, rows_second
from strobe.torch.context_parallel.keys import KeyCall, KeyPlan, key_plan
from strobe.torch.context_parallel.layout import Layout, Rows, one_behind_another
from strobe.torch.context_parallel.parts import CallOptions, Heads, part_options

_HIDDEN_BYTES = 1 << 20  # what is fetched in so few bytes takes less time than a launch for it alone


@dataclass(slots=True)
class GatherCall:
    """What a call says beside q, k and v."""

    group: Any
    layout: Layout
    options: CallOptions

    @property
    def rank(self) -> int:
        return distributed.get_rank(self.group)

    @property
    def plan(self) -> KeyPlan:
        return key_plan(self.layout, self.rank, self.options.sight)


def head_groups(heads_kv: int, heads_q: int, buffer_bytes: int, given: Any, backward: bool) -> list[Heads]:
    """Key heads that are computed together. The first group is small, since nothing hides its way, as in a backward is
    the last one, whose gradients nothing hides."""
    group = heads_q // max(heads_kv, 1)
    whole = heads_kv < 2 or buffer_bytes < _HIDDEN_BYTES or not given.keys().isdisjoint(("bias", "dropout"))
    ends = [heads_kv] if whole else [1, heads_kv]
    if backward and not whole and heads_kv > 2:
        ends.insert(1, heads_kv - 1)
    return [Heads(first, stop, group) for first, stop in zip([0, *ends], ends, strict=False)]


def _groups_of(call: GatherCall, q: Tensor, k: Tensor, v: Tensor, backward: bool) -> list[Heads]:
    rows = call.layout.total * (
        q.shape[0] if call.options.batched else 1
    )  # the same on all ranks, as the groups must be
    row_bytes = (k.shape[-1] + v.shape[-1]) * k.shape[-2] * k.element_size()
    return head_groups(k.shape[-2], q.shape[-2], rows * row_bytes, call.options.given, backward)


Fetched = tuple[Heads, Tensor, Tensor, Transfer]
"""Heads, with buffers for their keys and values, rows first, and what fills those."""


def _fetch(call: GatherCall, k: Tensor, v: Tensor, groups: list[Heads]) -> list[Fetched]:
    """Starts to fetch the keys of all groups, in their order."""
    plan, fetched = call.plan, []
    for heads in groups:
        own = [rows_first(x[..., heads.of_keys, :], call.options.batched) for x in (k, v)]
        buffers = [x.new_empty((plan.buffer_rows, *x.shape[1:])) for x in own]
        sent, received = ([(x, runs) for x in xs] for xs, runs in ((own, plan.sends), (buffers, plan.receives)))
        fetched.append((heads, *buffers, exchange.start(call.group, sent, received)))
    return fetched


def _part(x: Tensor, rows: Rows, heads: slice, batched: bool) -> Tensor:
    """Rows and heads of [batch, seqlen, heads, ..], or of packed [total, heads, ..]."""
    return x[:, slice(*rows), heads] if batched else x[slice(*rows), heads]


def _lse_part(lse: Tensor, rows: Rows, heads: slice) -> Tensor:
    """The same of [batch, heads, seqlen], or of [heads, total]."""
    return lse[..., heads, slice(*rows)]


class GatherAttention(torch.autograd.Function):
    """(o, lse) of a GatherCall, this rank's q, k and v, and the options that may have gradients."""

    @staticmethod
    def forward(ctx: Any, call: GatherCall, q: Tensor, k: Tensor, v: Tensor, bias: Any, sink: Any) -> Any:
        batched, plan = call.options.batched, call.plan
        fetched = _fetch(call, k, v, _groups_of(call, q, k, v, backward=False))
        o = q.new_empty(output_shape(q, v))
        lse = q.new_empty(lse_shape(q), dtype=torch.float32)
        for heads, keys, values, transfer in fetched:
            transfer.wait()
            for part in plan.calls:
                options = part_options(call.options, part, heads, q, q.shape[-2])
                k_part, v_part = (rows_second(x[slice(*part.buffer)], batched) for x in (keys, values))
                q_part, o_part = (_part(x, part.rows, heads.of_queries, batched) for x in (q, o))
                lse_part = _lse_part(lse, part.rows, heads.of_queries)
                _core.forward(q_part, k_part, v_part, o_part, lse_part, None, **options)
        # Tensors by save_for_backward alone: hooks may move what it saves to other memory.
        given = call.options.given
        tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
        values = {name: x for name, x in given.items() if name not in tensors}
        ctx.save_for_backward(q, k, v, o, lse, *tensors.values())
        ctx.call, ctx.values, ctx.names = call, values, list(tensors)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            no_second_derivative(ctx)
        q, k, v, o, lse, *tensors = ctx.saved_tensors
        d_o = torch.zeros_like(o) if d_o is None else ops.rows(d_o.resolve_neg())
        options = replace(ctx.call.options, given=ctx.values | dict(zip(ctx.names, tensors, strict=True)))
        call = replace(ctx.call, options=options)
        work = _Backward(call, (d_o, q, k, v, o, lse), d_lse, ctx.needs_input_grad[4:])
        work.run()
        return (None, work.dq, *(x.of_keys() for x in (work.dk, work.dv)), *work.modifiers())


class _Gradient:
    """Of this rank's keys or values: parts of it that arrive, and their sum."""

    def __init__(self, like: Tensor, batched: bool) -> None:
        self._like, self._batched = like, batched
        self._parts: list[tuple[int, int, Tensor, Any, slice]] = []

    def add(self, order: tuple[int, int], part: Tensor, runs: Any, heads: slice) -> None:
        """A part whose rows are, one behind another, the `runs` of this rank's rows."""
        self._parts.append((*order, part, runs, heads))

    def of_keys(self) -> Tensor:
        rows = self._like.transpose(0, 1) if self._batched else self._like
        total = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        for *_, part, runs, heads in sorted(self._parts, key=lambda x: x[:2]):
            for own, arrived in zip(runs, one_behind_another(runs), strict=True):
                total[slice(*own), ..., heads, :] += part[slice(*arrived)]
        return rows_second(total.to(rows.dtype), self._batched)


class _Backward:
    """The backward of one call."""

    def __init__(self, call: GatherCall, tensors: tuple[Tensor, ...], d_lse: Tensor | None, needs: Any) -> None:
        self.call, self.plan, self.batched = call, call.plan, call.options.batched
        self.d_o, self.q, self.k, self.v, self.o, self.lse = tensors
        self.d_lse = None if d_lse is None else ops.rows(d_lse)
        given = call.options.given
        self.d_bias = torch.zeros_like(given["bias"], dtype=torch.float32) if needs[0] else None
        self.d_sink = torch.zeros_like(given["sink"]) if needs[1] else None
        self.dq = torch.empty_like(self.q, memory_format=torch.contiguous_format)
        self.dk, self.dv = (_Gradient(x, self.batched) for x in (self.k, self.v))
        self.on_the_way: list[Transfer] = []

    def run(self) -> None:
        groups = _groups_of(self.call, self.q, self.k, self.v, backward=True)
        calls = max(map(len, self.call.layout.calls))  # of any rank: all take part in every exchange
        for heads, keys, values, transfer in _fetch(self.call, self.k, self.v, groups):
            transfer.wait()
            for number in range(calls):
                computed: list[Tensor] = []
                if number < len(self.plan.calls):
                    computed = self._compute(self.plan.calls[number], heads, keys, values)
                self._return(number, heads, computed)
        for transfer in self.on_the_way:
            transfer.wait()

    def _compute(self, part: KeyCall, heads: Heads, keys: Tensor, values: Tensor) -> list[Tensor]:
        """The gradients of the part's keys and values, rows first."""
        options = part_options(self.call.options, part, heads, self.q, self.q.shape[-2])
        k, v = (x[slice(*part.buffer)] for x in (keys, values))
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        d_bias = None if self.d_bias is None else torch.empty_like(options["bias"], dtype=torch.float32)
        d_sink = None if self.d_sink is None else torch.empty_like(options["sink"])
        d_o, q, o, dq = (
            _part(x, part.rows, heads.of_queries, self.batched) for x in (self.d_o, self.q, self.o, self.dq)
        )
        lse, d_lse = (None if x is None else _lse_part(x, part.rows, heads.of_queries) for x in (self.lse, self.d_lse))
        k, v, dk_out, dv_out = (rows_second(x, self.batched) for x in (k, v, dk, dv))
        allocate = framework_of(q).workspace_allocator(q, None)
        _core.backward(d_o, q, k, v, o, lse, d_lse, dq, dk_out, dv_out, d_bias, d_sink, allocate, **options)
        if self.d_bias is not None:
            self.d_bias[:, :, slice(*part.rows), slice(*part.keys[0])] += d_bias
        if self.d_sink is not None:
            self.d_sink[heads.of_queries] += d_sink
        return [dk, dv]

    def _return(self, number: int, heads: Heads, computed: list[Tensor]) -> None:
        """Starts to send the gradients of a call's keys to the ranks that have them, and to receive those of others."""
        rank, world = self.call.rank, self.call.layout.world
        received, sent = [], []
        if computed:
            runs = self.plan.returns[number]
            elsewhere = [() if peer == rank else x for peer, x in enumerate(runs)]
            sent = [(x, elsewhere) for x in computed]
        for peer, by_call in enumerate(self.plan.collects):
            if number >= len(by_call) or not by_call[number]:
                continue
            of_peer = by_call[number]
            places = one_behind_another(of_peer)
            for index, (gradient, like) in enumerate(((self.dk, self.k), (self.dv, self.v))):
                if peer == rank:
                    parts = [computed[index][slice(*x)] for x in self.plan.returns[number][rank]]
                    for run, part in zip(of_peer, parts, strict=True):
                        gradient.add((peer, number), part, [run], heads.of_keys)
                    continue
                rows = like.transpose(0, 1) if self.batched else like
                part = rows.new_empty((places[-1][1], *rows.shape[1:-2], heads.number, rows.shape[-1]))
                received.append((part, [places if i == peer else () for i in range(world)]))
                gradient.add((peer, number), part, of_peer, heads.of_keys)
        self.on_the_way.append(exchange.start(self.call.group, sent, received))

    def modifiers(self) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of bias and sink."""
        d_bias = None if self.d_bias is None else self.d_bias.to(self.call.options.given["bias"].dtype)
        return d_bias, self.d_sink
