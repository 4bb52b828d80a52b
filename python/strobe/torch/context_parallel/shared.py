# SPDX-License-Identifier: Apache-2.0
"""What the schemes that compute parts of a sequence have in common: their calls, and the backward of one part."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from strobe import _core
from strobe._frameworks import framework_of
from strobe.torch import ops
from strobe.torch.autograd import no_second_derivative
from strobe.torch.context_parallel.exchange import part
from strobe.torch.context_parallel.keys import KeyCall
from strobe.torch.context_parallel.launches import JOINED_ON_GPUS, Launch, launches
from strobe.torch.context_parallel.layout import Layout
from strobe.torch.context_parallel.parts import CallOptions, Heads


@dataclass(frozen=True, eq=False)
class SharedCall:
    """What a call says beside q, k and v. Calls that say the same share one of these, and what it remembers."""

    group: Any
    rank: int
    layout: Layout
    options: CallOptions
    memory: dict[Any, Any] = field(default_factory=dict)

    @property
    def batched(self) -> bool:
        return self.options.batched

    def launches(self, calls: Sequence[KeyCall], q: Tensor, backward: bool = False) -> list[Launch]:
        """Those that compute the calls."""
        key = (q.shape[0], q.is_cuda, backward, *calls)
        if key not in self.memory:
            joined = not q.is_cuda or self._is_joined(backward)
            self.memory[key] = launches(self.options, calls, q.shape[0], joined)
        return self.memory[key]

    def _is_joined(self, backward: bool) -> bool:
        """Not where gradients are added up in order: with used lengths all blocks of keys of a head wait in a row."""
        if backward and self.options.given.get("deterministic"):
            return False
        return JOINED_ON_GPUS["backward" if backward else "forward"]

    def options_of(self, launch: Launch, heads: Heads, q: Tensor) -> dict[str, Any]:
        """What the engine takes, the caller's own; q has all rows and heads."""
        if self.options.has_tensors:
            return launch.options(heads, q)
        key = (launch, heads, q.shape[-2:], q.device)
        if key not in self.memory:
            self.memory[key] = launch.options(heads, q)
        return dict(self.memory[key])


def compute(
    launch: Launch,
    heads: Heads,
    qkv: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    largest: Tensor | None,
    options: dict[str, Any],
) -> None:
    """The forward of a launch: writes out and lse, and adds to the largest scores of all."""
    own = None if largest is None else launch.largest(qkv[0], options)
    _core.forward(*qkv, *results, own, **options)
    if largest is not None and own is not None:
        launch.put_largest(own, largest, heads)


def save(ctx: Any, call: SharedCall, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor) -> None:
    """For PartBackward. Tensors by save_for_backward alone: hooks may move what it saves to other memory."""
    ctx.set_materialize_grads(False)
    ctx.call, ctx.names = call, []
    if not call.options.has_tensors:
        ctx.save_for_backward(q, k, v, o, lse)
        return
    given = call.options.given
    tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    ctx.save_for_backward(q, k, v, o, lse, *tensors.values())
    values = {name: x for name, x in given.items() if name not in tensors}
    ctx.call, ctx.names = replace(call, options=replace(call.options, given=values)), list(tensors)


class PartBackward:
    """The tensors of a backward, and what its parts add up to beside the gradients of q, k and v."""

    def __init__(self, ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> None:
        if torch.is_grad_enabled():
            no_second_derivative(ctx)
        self.q, self.k, self.v, self.o, self.lse, *tensors = ctx.saved_tensors
        self.d_o = torch.zeros_like(self.o) if d_o is None else ops.rows(d_o.resolve_neg())
        self.d_lse = None if d_lse is None else ops.rows(d_lse)
        self.call: SharedCall = ctx.call
        if tensors:
            given = ctx.call.options.given | dict(zip(ctx.names, tensors, strict=True))
            self.call = replace(ctx.call, options=replace(ctx.call.options, given=given), memory={})
        given = self.call.options.given
        *_, needs_d_bias, needs_d_sink = ctx.needs_input_grad
        self.d_bias = torch.zeros_like(given["bias"], dtype=torch.float32) if needs_d_bias else None
        self.d_sink = torch.zeros_like(given["sink"]) if needs_d_sink else None

    def compute(
        self,
        launch: Launch,
        heads: Heads,
        options: dict[str, Any],
        joined: Tensor,
        keys: tuple[Tensor, Tensor],
        dq: Tensor,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """Writes dq, and to `joined` the gradients of the keys and values that the launch takes, on the stream."""
        dk, dv = part(joined, self.k, self.v)
        k, v = keys
        d_o, q, o = (launch.queries(x, heads) for x in (self.d_o, self.q, self.o))
        lse, d_lse = (None if x is None else launch.lse(x, heads) for x in (self.lse, self.d_lse))
        d_bias = None if self.d_bias is None else torch.empty_like(options["bias"], dtype=torch.float32)
        d_sink = torch.empty_like(options["sink"]) if self.d_sink is not None and "sink" in options else None
        handle = None if stream is None else stream.cuda_stream
        if handle is not None:
            options = options | {"stream": handle}
        allocate = framework_of(q).workspace_allocator(q, handle)
        _core.backward(d_o, q, k, v, o, lse, d_lse, dq, dk, dv, d_bias, d_sink, allocate, **options)
        if self.d_bias is not None:
            (call,) = launch.calls
            self.d_bias[:, :, slice(*call.rows), slice(*call.keys[0])] += d_bias
        if self.d_sink is not None and d_sink is not None:
            self.d_sink[heads.of_queries] += d_sink

    def can_overlap(self) -> bool:
        """Whether launches write what no other does."""
        return self.d_bias is None and self.d_sink is None

    def modifiers(self) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of bias and sink."""
        d_bias = None if self.d_bias is None else self.d_bias.to(self.call.options.given["bias"].dtype)
        return d_bias, self.d_sink
