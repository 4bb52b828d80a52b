# SPDX-License-Identifier: Apache-2.0
"""Operators of gather and ring, for compilers, which do not look into them: a graph does not break there.

What an operator takes are tensors and values, so that the object, and in the backward what the forward found out, have
numbers. Sequences are those that the object knows when the operator runs.
"""

import ast
from collections.abc import Mapping
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from strobe._option_list import is_seeded
from strobe._shapes import lse_shape, output_shape

SCHEMES = ("gather", "ring")

_numbers = count()
_objects: WeakValueDictionary[int, Any] = WeakValueDictionary()
_calls: dict[int, tuple[Any, Any, list[str]]] = {}
_number_of_call: dict[Any, int] = {}


def number_of(owner: Any) -> int:
    """Of a ContextParallel."""
    number = next(_numbers)
    _objects[number] = owner
    return number


def can_compile(scheme: str, options: Mapping[str, Any]) -> bool:
    """Whether an operator has these options: of tensors a bias and a sink alone, and no seed that is drawn."""
    others = (x for name, x in options.items() if name not in ("bias", "sink"))
    is_drawn = options.get("dropout") and not is_seeded(options)
    return scheme in SCHEMES and not is_drawn and not any(isinstance(x, Tensor) for x in others)


def attend(number: int, q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """(out, lse) of this rank's rows."""
    values = [f"{name}={value}" for name, value in options.items() if name not in ("bias", "sink")]
    o, lse, _ = torch.ops.strobe.context_parallel(q, k, v, options.get("bias"), options.get("sink"), number, values)
    return o, lse


class _Kept:
    """What an autograd.Function keeps for its backward."""

    call: Any
    names: list[str]
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def set_materialize_grads(self, value: bool) -> None:
        pass

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a word


@torch.library.custom_op(
    "strobe::context_parallel",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sink, int number, str[] values)"
    " -> (Tensor, Tensor, Tensor)",
)
def _forward(q: Tensor, k: Tensor, v: Tensor, bias: Any, sink: Any, number: int, values: list[str]) -> Any:
    """out, lse, and the number of what the backward is of."""
    options = {name: _value(text) for name, text in (x.split("=", 1) for x in values)}
    options |= {name: x for name, x in (("bias", bias), ("sink", sink)) if x is not None}
    of_parts, call = _objects[number].prepared(q, k, v, options)
    kept = _Kept()
    o, lse = of_parts.forward(kept, call, None, q, k, v, bias, sink)
    key = (of_parts, number, tuple(values), tuple(kept.names), call.layout)
    if key not in _number_of_call:
        _number_of_call[key] = len(_calls)
        _calls[len(_calls)] = (of_parts, kept.call, kept.names)
    return o, lse, torch.tensor([_number_of_call[key]])


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bias: Any, sink: Any, number: int, values: list[str]) -> Any:
    lse = q.new_empty(lse_shape(q), dtype=torch.float32)
    return q.new_empty(output_shape(q, v)), lse, torch.empty(1, dtype=torch.int64)


@torch.library.custom_op(
    "strobe::context_parallel_backward",
    mutates_args=(),
    schema="(Tensor d_o, Tensor d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? bias, Tensor? sink,"
    " Tensor call) -> Tensor[]",
)
def _backward(
    d_o: Tensor, d_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Any, sink: Any, call: Any
) -> list[Tensor]:
    """The gradients of q, k and v, then those of bias and sink, where there are any."""
    kept = _Kept()
    of_parts, kept.call, kept.names = _calls[int(call)]
    kept.saved_tensors = (q, k, v, o, lse, *(x for x in (bias, sink) if x is not None))
    kept.needs_input_grad = (False, False, True, True, True, bias is not None, sink is not None)
    with torch.no_grad():
        gradients = (x for x in of_parts.backward(kept, d_o, d_lse) if x is not None)
        return [x.clone(memory_format=torch.contiguous_format) if x._is_view() else x for x in gradients]


@_backward.register_fake
def _(
    d_o: Tensor, d_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Any, sink: Any, call: Any
) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v, bias, sink) if x is not None]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, bias, sink, *_ = inputs
    o, lse, call = output
    ctx.save_for_backward(q, k, v, o, lse, bias, sink, call)


def _gradients(ctx: Any, d_o: Tensor, d_lse: Tensor, _: Any) -> Any:
    q, k, v, o, lse, bias, sink, call = ctx.saved_tensors
    d_o, d_lse = (torch.zeros_like(x) if given is None else given for given, x in ((d_o, o), (d_lse, lse)))
    results = list(torch.ops.strobe.context_parallel_backward(d_o, d_lse, q, k, v, o, lse, bias, sink, call))
    d_bias = results[3] if bias is not None else None
    return *results[:3], d_bias, results[-1] if sink is not None else None, None, None


_forward.register_autograd(_gradients, setup_context=_keep)
