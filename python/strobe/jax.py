# SPDX-License-Identifier: Apache-2.0
"""Attention with gradients for JAX: a custom call of XLA's, under jit, grad, vmap and on any device Strobe has."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import CustomVJPPrimal

from strobe import _core
from strobe._documented import with_options
from strobe._forward import results
from strobe._option_list import EIGHT_BIT_NAMES, OPTIONS, SCORE_NAMES, check_options, names_of
from strobe._options import TensorOptions
from strobe._quantized import Plan, Quantized
from strobe._shapes import (
    EIGHT_BIT,
    dtype_name,
    eight_bit_output_shape,
    lse_shape,
    max_logits_shape,
    numpy_dtype,
    output_shape,
    tensor_shape,
)

__all__ = ["attention"]

for _name, _handler in _core.jax_handlers().items():
    _device, _, _pass = _name.partition("_")
    jax.ffi.register_ffi_target(f"strobe_{_pass}", _handler, platform={"host": "cpu", "cuda": "CUDA"}[_device])

jax.tree_util.register_dataclass(
    Quantized,
    data_fields=["q", "k", "v", "q_descale", "k_descale", "v_descale", "q_shift", "cu_seqlens_q", "cu_seqlens_k"],
    meta_fields=["v_rotation", "out_dtype", "max_seqlen_q", "max_seqlen_k"],
)

_NAMES = (*SCORE_NAMES, *EIGHT_BIT_NAMES)
_PACKED = ("cu_seqlens_q", "cu_seqlens_k")
_TENSORS = tuple(name for name in names_of("tensor", _NAMES) if name != "random_state")
_SEEDS = ("seed", "offset")
_CAUSAL = {False: 0, True: 1, "bottom_right": 1, "top_left": 2}

Tensors = dict[str, Array]


class _Call(NamedTuple):
    """What a call is besides its tensors: constants of the compiled program."""

    attributes: tuple[tuple[str, Any], ...]
    max_logits: bool
    out_dtype: str | None = None  # of 8-bit inputs


@with_options(TensorOptions)
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    return_max_logits: bool = False,
    **options: Unpack[TensorOptions],
) -> Any:
    """``strobe.attention`` with gradients, for q, k, v, bias and sink, through the output and through lse.

    Shapes, dtypes, options (strobe.ScoreOptions and strobe.EightBitOptions) and errors are those of strobe.attention.
    Options that are no arrays are constants of the compiled program, but for seed and offset, which may be traced
    integers, 0 or more. With dropout one of them, or random_state, must be given: JAX has no generator to draw from.
    Arrays that are not row-major are copied, by XLA. 8-bit inputs have no gradients: NotImplementedError.
    """
    check_options("strobe.jax.attention", options, _NAMES)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_array(name, tensor)
    if options.get("out_dtype") is not None:
        options["out_dtype"] = dtype_name(options["out_dtype"], "out_dtype")
    elif str(q.dtype) in EIGHT_BIT:
        raise ValueError(f"q is {q.dtype}: give out_dtype")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    _check(q, k, v, given)
    tensors = {"q": q, "k": k, "v": v} | {name: jnp.asarray(given[name]) for name in _TENSORS if name in given}
    if given.get("dropout"):
        tensors["random"] = _random_state(given)
    call = _Call(_attributes(given), return_max_logits, given.get("out_dtype"))
    o, lse, max_logits = _attention(call, tensors)
    return results(o, lse if return_lse else None, max_logits)


def run_quantize(plan: Plan, q: Array, k: Array, v: Array, threads: int) -> Quantized:
    """strobe.quantize on JAX's arrays, under jit and vmap, too."""
    given = plan.sequences.given()
    tensors = {"q": q, "k": k, "v": v} | {name: given.pop(name) for name in _PACKED if name in given}
    for name, tensor in tensors.items():
        _check_array(name, tensor)
    written = tuple(
        (name, jax.ShapeDtypeStruct(shape, numpy_dtype(plan.dtypes[name]))) for name, shape in plan.shapes.items()
    )
    numbers = plan.quantization.settings() | given | {"threads": _core.integer("threads", threads)}
    attributes = {name: np.int64(number) for name, number in numbers.items() if name != "seed"}
    attributes["seed"] = _signed(numbers["seed"])
    outputs = _quantize(_Quantization(tuple(sorted(attributes.items())), written), tensors)
    return plan.result(outputs)


def values_or_shapes(*tensors: Array) -> tuple[Any, ...]:
    """NumPy's view of arrays in host memory; shapes where there are no values, or they are on another device."""
    if all(not isinstance(x, jax.core.Tracer) and x.devices() <= set(jax.devices("cpu")) for x in tensors):
        return tuple(np.asarray(x) for x in tensors)
    return tuple(tensor_shape(x.shape, str(x.dtype), "cpu") for x in tensors)


def _check_array(name: str, value: Any) -> None:
    if not isinstance(value, (Array, np.ndarray)) or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is of type {type(value).__name__}: it must be an array of JAX or NumPy")


def _check(q: Array, k: Array, v: Array, given: dict[str, Any]) -> None:
    """Raises what the call would, before it is compiled: shapes and options are known, values are not."""
    query, key, value = (tensor_shape(x.shape, str(x.dtype), "cpu") for x in (q, k, v))
    options = dict(given)
    for name in (*_TENSORS, "random_state"):
        if name in options:
            _check_array(name, options[name])
            options[name] = tensor_shape(options[name].shape, str(options[name].dtype), "cpu")
    for name in options:
        if isinstance(options[name], jax.core.Tracer):
            _check_traced(name, options[name])
    for name in _SEEDS:
        if isinstance(options.get(name), jax.core.Tracer):
            del options[name]
    _core.explain(query, key, value, False, **options)


def _check_traced(name: str, value: Array) -> None:
    """Of an option that is no array."""
    if name not in _SEEDS:
        instead = ": multiply q by it instead" if name == "scale" else ""
        raise TypeError(f"{name} is traced, but it is a constant of the compiled program{instead}")
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} has shape {list(value.shape)} and is {value.dtype}: it must be an integer")


def _random_state(options: dict[str, Any]) -> Array:
    """The words of seed and offset."""
    if "random_state" in options:
        return jnp.asarray(options["random_state"])
    if not options.keys() & set(_SEEDS):
        raise ValueError(
            "dropout is given without a seed: give seed, a new one in each call, as jax.random.bits(key, "
            'dtype="uint32") draws it'
        )
    return jnp.concatenate([_words(name, options.get(name, 0)) for name in _SEEDS])


def _words(name: str, number: Any) -> Array:
    """A number of up to 64 bits as two of 32, the low one first."""
    if not isinstance(number, jax.core.Tracer):
        number = _core.unsigned_integer(name, number)
        return jnp.asarray([number & 0xFFFFFFFF, number >> 32], jnp.uint32)
    low = number.astype(jnp.uint32)
    high = (number >> 32).astype(jnp.uint32) if number.dtype.itemsize == 8 else jnp.zeros_like(low)
    return jnp.stack([low, high])


def _attributes(options: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    left, right = options.get("window", (-1, -1))
    attributes: dict[str, Any] = {"window_left": np.int64(left), "window_right": np.int64(right)}
    causal = options.get("causal", False)
    attributes["causal"] = np.int64(_CAUSAL[causal if isinstance(causal, str) else bool(causal)])
    for name, value in options.items():
        kind = OPTIONS[name].kind
        if kind in _ATTRIBUTES and name not in _SEEDS:
            attributes[name] = _ATTRIBUTES[kind](value)
    return tuple(sorted(attributes.items()))


def _signed(number: int) -> np.int64:
    """A 64-bit number without a sign, of which attributes of a call have none, by its bits."""
    return np.uint64(number).astype(np.int64)


# What an option is as an attribute of a call; seed and offset are operands.
_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "number": np.float32,
    "integer": np.int64,
    "flag": np.int64,
    "word": _signed,
}


def _call(target: str, operands: Tensors, results: dict[str, jax.ShapeDtypeStruct], call: Any) -> Tensors:
    compute = jax.ffi.ffi_call(f"strobe_{target}", tuple(results.values()), vmap_method="sequential")
    outputs = compute(
        *operands.values(), operands=" ".join(operands), results=" ".join(results), **dict(call.attributes)
    )
    return dict(zip(results, outputs, strict=True))


class _Quantization(NamedTuple):
    attributes: tuple[tuple[str, Any], ...]
    results: tuple[tuple[str, jax.ShapeDtypeStruct], ...]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _quantize(call: _Quantization, tensors: Tensors) -> Tensors:
    return _call("quantize", tensors, dict(call.results), call)


def _quantize_forward(call: _Quantization, tensors: Tensors) -> Any:
    raise NotImplementedError("8-bit tensors have no gradients: take stop_gradient of q, k and v before quantize")


def _quantize_backward(call: _Quantization, saved: Any, cotangents: Any) -> Any:
    raise NotImplementedError


_quantize.defvjp(_quantize_forward, _quantize_backward)


def _forward(call: _Call, tensors: Tensors) -> tuple[Array, Array, Array | None]:
    q, v = tensors["q"], tensors["v"]
    if call.out_dtype is None:
        o = jax.ShapeDtypeStruct(output_shape(q, v), q.dtype)
    else:
        o = jax.ShapeDtypeStruct(eight_bit_output_shape(q, v), numpy_dtype(call.out_dtype))
    written = {"o": o, "lse": jax.ShapeDtypeStruct(lse_shape(q), jnp.float32)}
    if call.max_logits:
        shape = max_logits_shape(q, tensors.get("cu_seqlens_q"))
        written["max_logits"] = jax.ShapeDtypeStruct(shape, jnp.float32)
    outputs = _call("forward", tensors, written, call)
    return outputs["o"], outputs["lse"], outputs.get("max_logits")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call: _Call, tensors: Tensors) -> tuple[Array, Array, Array | None]:
    return _forward(call, tensors)


def _attention_forward(call: _Call, primals: dict[str, CustomVJPPrimal]) -> Any:
    if "alibi_slopes" in primals and primals["alibi_slopes"].perturbed:
        raise NotImplementedError(
            "alibi_slopes requires a gradient, which attention does not have: take jax.lax.stop_gradient of it"
        )
    tensors = {name: primal.value for name, primal in primals.items()}
    if str(tensors["k"].dtype) in EIGHT_BIT:
        name = "q" if call.out_dtype is not None else "k"
        raise NotImplementedError(f"{name} is {tensors[name].dtype}: calls of 8-bit tensors have no gradients")
    o, lse, max_logits = _forward(call, tensors)
    return (o, lse, max_logits), (tensors, o, lse)


def _attention_backward(call: _Call, saved: Any, cotangents: Any) -> Any:
    tensors, o, lse = saved
    d_o, d_lse, d_max_logits = (
        None if x is None or isinstance(x, jax.custom_derivatives.SymbolicZero) else x for x in cotangents
    )
    if d_max_logits is not None:
        raise NotImplementedError("max_logits is part of the loss: it has no gradient, take stop_gradient of it")
    operands = {**tensors, "o": o, "lse": lse, "d_o": jnp.zeros_like(o) if d_o is None else d_o}
    if d_lse is not None:
        operands["d_lse"] = d_lse
    shapes = {f"d{name}": jax.ShapeDtypeStruct(tensors[name].shape, tensors[name].dtype) for name in ("q", "k", "v")}
    for name in ("bias", "sink"):
        if name in tensors:
            shapes[f"d_{name}"] = jax.ShapeDtypeStruct(tensors[name].shape, jnp.float32)
    gradients = _call("backward", operands, shapes, call)
    return ({name: _gradient(name, tensor, gradients) for name, tensor in tensors.items()},)


def _gradient(name: str, tensor: Array, gradients: Tensors) -> Any:
    if name in ("q", "k", "v"):
        return gradients[f"d{name}"]
    if name in ("bias", "sink"):
        return gradients[f"d_{name}"].astype(tensor.dtype)
    if jnp.issubdtype(tensor.dtype, jnp.floating):
        return jnp.zeros_like(tensor)
    return np.zeros(tensor.shape, jax.dtypes.float0)


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)
