# SPDX-License-Identifier: Apache-2.0
"""A call of Strobe's as XLA has it: a custom call (``jax.ffi``) of tensors with names."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from strobe import _core
from strobe._shapes import (
    Shape,
    eight_bit_output_shape,
    lse_shape,
    max_logits_shape,
    numpy_dtype,
    output_shape,
)
from strobe.jax.axes import GRADIENTS, TANGENTS, CallAxes
from strobe.jax.internals import export_as_stable

Tensors = dict[str, Array]
Type = tuple[Shape, Any]
"""Shape and dtype."""

for _name, _handler in _core.jax_handlers().items():
    _device, _, _pass = _name.partition("_")
    jax.ffi.register_ffi_target(f"strobe_{_pass}", _handler, platform={"host": "cpu", "cuda": "CUDA"}[_device])
    export_as_stable(f"strobe_{_pass}")


class Call(NamedTuple):
    """What a call is besides its tensors: constants of the compiled program."""

    target: str
    """forward, backward, tangent or quantize."""
    attributes: tuple[tuple[str, Any], ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    out_dtype: str | None = None
    """Of 8-bit inputs."""
    quantized: tuple[tuple[str, Type], ...] = ()
    """The types of the results of quantize."""


def has_texts(call: Call) -> bool:
    """Whether text says what becomes of scores, or which keys are seen."""
    return any(name in ("score", "mask_text") for name, _ in call.attributes)


def axes_of(call: Call, operands: Mapping[str, Any]) -> CallAxes:
    """The axes of the call's tensors; operands have a ``shape``."""
    return CallAxes(operands, call.out_dtype is not None)


def result_types(call: Call, operands: Mapping[str, Any]) -> dict[str, Type]:
    """Shape and dtype of each result of a call of operands with these shapes and dtypes."""
    if call.quantized:
        return dict(call.quantized)
    return {name: _result_type(name, call, operands) for name in call.results}


def _result_type(name: str, call: Call, operands: Mapping[str, Any]) -> Type:
    q, v = operands["q"], operands["v"]
    for tensor, tangent in TANGENTS.items():
        name = tensor if name == tangent else name
    if name == "o":
        if call.out_dtype is not None:
            return eight_bit_output_shape(q, v), numpy_dtype(call.out_dtype)
        return output_shape(q, v), q.dtype
    if name == "lse":
        return lse_shape(q), jnp.float32
    if name == "max_logits":
        return max_logits_shape(q, operands.get("cu_seqlens_q")), jnp.float32
    like = next(operands[tensor] for tensor, gradient in GRADIENTS.items() if gradient == name)
    if name == "d_bias":  # of every query, where the bias has one row for all of them
        return (*like.shape[:2], q.shape[1], like.shape[3]), jnp.float32
    return like.shape, jnp.float32 if name == "d_sink" or name.startswith("d_capture") else like.dtype


def compute(call: Call, *operands: Array) -> tuple[Array, ...]:
    """The custom call."""
    given = dict(zip(call.operands, operands, strict=True))
    results = tuple(jax.ShapeDtypeStruct(*x) for x in result_types(call, given).values())
    if call.target == "tangent":  # o and lse are those of its transpose: it computes its own
        given = {name: x for name, x in given.items() if name not in ("o", "lse")}
    names = {"operands": " ".join(given), "results": " ".join(call.results)}
    return tuple(jax.ffi.ffi_call(f"strobe_{call.target}", results)(*given.values(), **names, **dict(call.attributes)))
