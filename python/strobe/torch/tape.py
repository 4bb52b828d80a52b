# SPDX-License-Identifier: Apache-2.0
"""The node of eager training on PyTorch's tape: no dispatcher, and nothing that a call does not need.

What the host does before a launch is most of a short call's time, so that each tensor and each argument counts.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strobe import _core
from strobe._expressions import differentiable
from strobe._frameworks import framework_of
from strobe._option_list import is_normalized
from strobe._shapes import lse_shape, max_logits_shape, output_shape
from strobe.torch import ops


@dataclass(slots=True)
class Call:
    """What a call says beside q, k and v. The options are the call's own: those that are tensors leave them."""

    options: dict[str, Any]
    captures: tuple[str, ...]
    """The names of those that stand behind the modifiers."""
    returns_lse: bool
    returns_max_logits: bool


class StrobeAttention(torch.autograd.Function):
    """attention(call, q, k, v), or with bias, sink and the captures behind them where there is one of these."""

    @staticmethod
    def forward(ctx: Any, call: Call, q: Tensor, k: Tensor, v: Tensor, *modifiers: Tensor | None) -> Any:
        # Not with a setup_context of its own, for which PyTorch would read this function's signature in every call.
        options = call.options
        captures: dict[str, Any] = {}
        if call.captures:
            captures["captures"] = dict(zip(call.captures, modifiers[2:], strict=True))
        if q.shape[-1] == v.shape[-1]:
            o = torch.empty_like(q, memory_format=torch.contiguous_format)  # in half the time of new_empty
        else:
            o = q.new_empty(output_shape(q, v))
        lse = torch.empty(lse_shape(q), dtype=torch.float32, device=q.device)
        max_logits = None
        if call.returns_max_logits:
            shape = max_logits_shape(q, options.get("cu_seqlens_q"))
            max_logits = torch.empty(shape, dtype=torch.float32, device=q.device)
        _core.forward(q, k, v, o, ops.lse_of_softmax(lse, options), max_logits, **options, **captures)
        # Tensors by save_for_backward alone: hooks may move what it saves to other memory.
        tensors = [name for name, value in options.items() if isinstance(value, Tensor)]
        if tensors or captures:
            ctx.save_for_backward(q, k, v, o, lse, *modifiers[2:], *map(options.pop, tensors))
        else:
            ctx.save_for_backward(q, k, v, o, lse)
        ctx.call, ctx.names = call, tensors
        ctx.set_materialize_grads(False)
        if max_logits is not None:
            ctx.mark_non_differentiable(max_logits)
            return (o, lse, max_logits) if call.returns_lse else (o, max_logits)
        return (o, lse) if call.returns_lse else o

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, *others: Tensor | None) -> Any:
        q, k, v, o, lse, *tensors = ctx.saved_tensors
        options, names = ctx.call.options, ctx.call.captures
        captures = dict(zip(names, tensors, strict=False))
        if tensors:
            options = options | dict(zip(ctx.names, tensors[len(names) :], strict=True))
        if captures:
            options = options | {"captures": captures}
        d_lse = others[0] if ctx.call.returns_lse else None
        d_o = torch.zeros_like(o) if d_o is None else ops.rows(d_o)
        if d_lse is not None:
            d_lse = ops.rows(d_lse)
        _, _, _, _, *modifiers = ctx.needs_input_grad
        needs_d_bias, needs_d_sink, *needs = modifiers or (False, False)
        wanted = [name for name, needed in zip(names, needs, strict=True) if needed]
        if wanted:
            with_gradient = differentiable(options)
            wanted = [name for name in wanted if name in with_gradient]
        # With create_graph the operator records the call, to say that there is no second derivative.
        if torch.is_grad_enabled() or ops.is_traced(d_o, d_lse, q, *tensors):
            arguments = ops.operator_arguments(q, k, v, options)[3:-1]
            bits = sum(1 << i for i, name in enumerate(names) if name in wanted)
            dq, dk, dv, d_bias, d_sink, d_captures = torch.ops.strobe.attention_backward(
                d_o, d_lse, q, k, v, o, lse, *arguments, needs_d_bias, needs_d_sink, bits
            )
            of_captures = dict(zip(names, ops.split_captures(d_captures, [*captures.values()], bits), strict=True))
        else:
            d_o = d_o.resolve_neg() if d_o.is_neg() else d_o
            dq = torch.empty_like(q, memory_format=torch.contiguous_format)
            dk = torch.empty_like(k, memory_format=torch.contiguous_format)
            dv = torch.empty_like(v, memory_format=torch.contiguous_format)
            d_bias = torch.empty_like(options["bias"], dtype=torch.float32) if needs_d_bias else None
            d_sink = torch.empty_like(options["sink"]) if needs_d_sink else None
            of_captures = {
                name: torch.empty_like(captures[name], dtype=torch.float32, memory_format=torch.contiguous_format)
                for name in wanted
            }
            allocate = framework_of(q).workspace_allocator(q, None)
            lse = lse if is_normalized(options) else None
            _core.backward(d_o, q, k, v, o, lse, d_lse, dq, dk, dv, d_bias, d_sink, allocate, of_captures, **options)
        if not modifiers:
            return None, dq, dk, dv
        return (
            *(None, dq, dk, dv),
            d_bias.to(options["bias"].dtype) if needs_d_bias else None,
            d_sink if needs_d_sink else None,
            *(of_captures[name].to(x.dtype) if name in wanted else None for name, x in captures.items()),
        )
