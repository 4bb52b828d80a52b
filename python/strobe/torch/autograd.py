# SPDX-License-Identifier: Apache-2.0
"""The derivatives of the operators, as nodes on PyTorch's tape: under autograd, its compilers and torch.func alike.

torch.library.register_autograd makes nodes that torch.func refuses. These are of one level of its transforms, as the
nodes of PyTorch's own operators are: each level has a node, and what it computes the levels below see as operators.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from strobe._option_list import CAPTURE_NAMES, is_normalized
from strobe.torch import ops
from strobe.torch.jvp import TANGENT_NAMES, dual_outputs
from strobe.torch.ops import LIBRARY, TENSOR_NAMES, VALUE_NAMES


def _redispatch(operator: Any, keyset: Any, arguments: tuple[Any, ...]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)


def _in_node(operator: Any, keyset: Any, arguments: tuple[Any, ...]) -> Any:
    """The same in a node's forward, where PyTorch has turned gradients off: those of lower levels are to be taken."""
    if not _are_functorch_transforms_active():
        return _redispatch(operator, keyset, arguments)
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        return _redispatch(operator, keyset, arguments)


def has_tangents(*values: Any) -> bool:
    """Whether a forward-mode derivative of one of these is taken."""
    if forward_ad._current_level < 0 or not torch._C._is_fwd_grad_enabled():
        return False
    return any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in values)


def no_second_derivative(ctx: Any, *derivatives: Tensor | None) -> Any:
    """Raises NotImplementedError."""
    raise NotImplementedError(
        "the second derivative of attention was asked for: Strobe has the first alone, call backward without "
        "create_graph, and detach tangents before a loss"
    )


class Attention(_SingleLevelFunction):
    """strobe::attention, of the dispatcher's keys and the operator's arguments."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *arguments: Any) -> Any:
        o, lse, max_logits = _in_node(torch.ops.strobe.attention.default, keyset, arguments)
        q, k, v, *rest = arguments
        tensors, values = rest[: len(TENSOR_NAMES)], rest[len(TENSOR_NAMES) : -1]
        ctx.set_materialize_grads(False)
        constants = (max_logits,) if is_normalized(dict(zip(VALUE_NAMES, values, strict=True))) else (max_logits, lse)
        ctx.mark_non_differentiable(*constants)
        ctx.save_for_backward(q, k, v, o, lse, *tensors)
        ctx.values = values
        return o, lse, max_logits

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None, d_max_logits: Tensor | None) -> Any:
        if d_max_logits is not None:
            raise NotImplementedError("max_logits is part of the loss: it has no gradient, detach it")
        q, k, v, o, lse, *tensors = ctx.saved_tensors
        needs = dict(zip(TENSOR_NAMES, ctx.needs_input_grad[4:], strict=False))
        d_o = torch.zeros_like(o) if d_o is None else ops.rows(d_o)
        if d_lse is not None:
            d_lse = ops.rows(d_lse)
        # With create_graph the operator records the call, to say that there is no second derivative.
        recorded = torch.is_grad_enabled() or q.is_meta or ops.is_traced(d_o, d_lse, q, k, v, o, lse, *tensors)
        compute = torch.ops.strobe.attention_backward if recorded else ops.backward
        options = (*tensors, *ctx.values)
        of_captures = ops.wanted_captures(options, [name for name in CAPTURE_NAMES if needs[name]])
        dq, dk, dv, d_bias, d_sink, d_captures = compute(
            d_o, d_lse, q, k, v, o, lse, *options, needs["bias"], needs["sink"], of_captures
        )
        by_name: dict[str, Tensor] = {}
        if needs["bias"]:
            by_name["bias"] = d_bias.to(tensors[TENSOR_NAMES.index("bias")].dtype)
        if needs["sink"]:
            by_name["sink"] = d_sink
        if of_captures:
            captures = {name: x for name, x in zip(TENSOR_NAMES, tensors, strict=True) if name in CAPTURE_NAMES}
            gradients = ops.split_captures(d_captures, [*captures.values()], of_captures)
            pairs = zip(captures.items(), gradients, strict=True)
            by_name |= {name: gradient.to(x.dtype) for (name, x), gradient in pairs if gradient is not None}
        return (None, dq, dk, dv, *(by_name.get(name) for name in TENSOR_NAMES), *(None for _ in VALUE_NAMES), None)


class AttentionBackward(_SingleLevelFunction):
    """strobe::attention_backward, likewise."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *arguments: Any) -> Any:
        return _in_node(torch.ops.strobe.attention_backward.default, keyset, arguments)

    backward = staticmethod(no_second_derivative)
    jvp = staticmethod(no_second_derivative)


class AttentionJvp(_SingleLevelFunction):
    """strobe::attention_jvp, likewise: the tangents that it computes are not differentiated again."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *arguments: Any) -> Any:
        outputs = _in_node(torch.ops.strobe.attention_jvp.default, keyset, arguments)
        q, k, v, *rest = arguments
        tensors, values = rest[: len(TENSOR_NAMES)], rest[len(TENSOR_NAMES) : -len(TANGENT_NAMES)]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, *outputs[:2], *tensors)
        ctx.values = values
        return outputs

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None, *of_tangents: Tensor | None) -> Any:
        if any(gradient is not None for gradient in of_tangents):
            no_second_derivative(ctx, *of_tangents)
        *gradients, _ = Attention.backward(ctx, d_o, d_lse, None)
        return (*gradients, *(None for _ in TANGENT_NAMES))

    jvp = staticmethod(no_second_derivative)


def _kernel(operator: Any, node: Any) -> Callable[..., Any]:
    """What the dispatcher calls for tensors that a tape may record."""

    def compute(keyset: Any, *arguments: Any) -> Any:
        if node is Attention and has_tangents(*arguments):
            return dual_outputs(*arguments)
        recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)
        if not (recorded or has_tangents(*arguments)):
            return _redispatch(operator, keyset, arguments)
        allowed = enable_single_level_autograd_function() if _are_functorch_transforms_active() else nullcontext()
        with allowed:
            return node.apply(keyset, *arguments)

    return compute


for _operator, _node in (
    (torch.ops.strobe.attention.default, Attention),
    (torch.ops.strobe.attention_backward.default, AttentionBackward),
    (torch.ops.strobe.attention_jvp.default, AttentionJvp),
):
    LIBRARY.impl(_operator._opname, _kernel(_operator, _node), "Autograd", with_keyset=True)
