# SPDX-License-Identifier: Apache-2.0
"""What a call of strobe.jax.attention is given: checks, and options as constants of the compiled program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from strobe import _core
from strobe._expressions import unpack
from strobe._option_list import (
    CAPTURE_NAMES,
    EIGHT_BIT_NAMES,
    OPTIONS,
    SCORE_NAMES,
    captures_of,
    check_options,
    is_normalized,
    names_of,
)
from strobe._options import JaxOptions
from strobe._shapes import EIGHT_BIT, dtype_name, tensor_shape
from strobe.jax.dropout import SEEDS, check_key
from strobe.jax.masks import MASKS, check_masks

TENSORS = tuple(name for name in names_of("tensor", (*SCORE_NAMES, *EIGHT_BIT_NAMES)) if name != "random_state")
"""Options that are operands of a call."""
_CAUSAL = {False: 0, True: 1, "bottom_right": 1, "top_left": 2}
# What arguments of JAX's own functions are here.
_NAMES_ELSEWHERE = {
    "query_seq_lengths": "seqused_q",
    "key_value_seq_lengths": "seqused_k",
    "local_window_size": "window, with -1 for a side without a bound",
    "segment_ids": "q_segment_ids and kv_segment_ids",
}


def check_call(q: Array, k: Array, v: Array, options: dict[str, Any]) -> dict[str, Any]:
    """The options that are given. Raises what the call would as far as shapes and dtypes say, before XLA compiles."""
    for name in sorted(options.keys() & _NAMES_ELSEWHERE.keys()):
        raise TypeError(f"{name} is no option of strobe.jax.attention: give {_NAMES_ELSEWHERE[name]}")
    check_options("strobe.jax.attention", options, (*SCORE_NAMES, *EIGHT_BIT_NAMES, *JaxOptions.__annotations__))
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_array(name, tensor)
    if options.get("out_dtype") is not None:
        options["out_dtype"] = dtype_name(options["out_dtype"], "out_dtype")
    elif str(q.dtype) in EIGHT_BIT:
        raise ValueError(f"q is {q.dtype}: give out_dtype")
    options["mask"] = unpack(options.get("mask"), options)
    given = {name: value for name, value in options.items() if value is not None}
    _check_options(q, k, v, given)
    check_masks(q, k, given)
    check_key(given)
    return given


def check_array(name: str, value: Any) -> None:
    """TypeError for anything else."""
    if not isinstance(value, (Array, np.ndarray)) or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is of type {type(value).__name__}: it must be an array of JAX or NumPy")


def _check_options(q: Array, k: Array, v: Array, given: dict[str, Any]) -> None:
    arrays = {"q": q, "k": k, "v": v}
    for name in (*TENSORS, "random_state", *MASKS):
        if name in given:
            check_array(name, given[name])
            arrays[name] = given[name]
    captures = captures_of(given)
    for name, capture in captures.items():
        if not isinstance(capture, np.generic):  # NumPy's scalars are arrays of rank 0
            check_array(f"capture `{name}`", capture)
    options = {name: value for name, value in given.items() if name not in arrays and name not in (*MASKS, "key")}
    if "scale" in options and is_learnt(options["scale"]):
        _check_scale(q, options.pop("scale"))
    for name, value in list(options.items()):
        if isinstance(value, jax.core.Tracer):
            _check_traced(name, value)
            del options[name]
    if not all(isinstance(n, (int, np.integer)) for x in arrays.values() for n in x.shape):
        return  # of a program for shapes that are symbols; the call looks at those of its arrays
    options |= {name: tensor_shape(x.shape, str(x.dtype), "cpu") for name, x in arrays.items() if name not in MASKS}
    if captures:
        options["captures"] = {name: tensor_shape(x.shape, str(x.dtype), "cpu") for name, x in captures.items()}
    _core.explain(options.pop("q"), options.pop("k"), options.pop("v"), False, **options)


def _check_traced(name: str, value: Array) -> None:
    """Of an option that is no array."""
    if name not in SEEDS:
        raise TypeError(
            f"{name} is traced, but it is a constant of the compiled program: give a number, or name it in the "
            "static_argnames of jax.jit; it has no gradient"
        )
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} has shape {list(value.shape)} and is {value.dtype}: it must be an integer")


def is_learnt(scale: Any) -> bool:
    """Whether it is multiplied into q, so that it may be traced, have a gradient and differ between heads."""
    return isinstance(scale, jax.core.Tracer) or (isinstance(scale, (Array, np.ndarray)) and scale.ndim > 0)


def _check_scale(q: Array, scale: Any) -> None:
    check_array("scale", scale)
    if str(q.dtype) in EIGHT_BIT:
        raise TypeError(f"scale is an array and q is {q.dtype}: with 8-bit tensors it must be a number")
    if not jnp.issubdtype(scale.dtype, jnp.floating):
        raise TypeError(f"scale is {scale.dtype}: it must be floating point")
    if scale.shape not in ((), q.shape[-2:-1]):
        raise ValueError(
            f"scale has shape {list(scale.shape)}: it must be a number or [heads_q], {list(q.shape[-2:-1])}"
        )


def scaled(q: Array, scale: Any) -> Array:
    """q times a scale that is learnt, in float32, rounded to q's dtype."""
    factor = jnp.asarray(scale).astype(jnp.float32)
    return (q.astype(jnp.float32) * (factor[:, None] if factor.ndim else factor)).astype(q.dtype)


def attributes_of(options: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The options that are constants, as attributes of the custom call."""
    left, right = options.get("window", (-1, -1))
    attributes: dict[str, Any] = {"window_left": np.int64(left), "window_right": np.int64(right)}
    causal = options.get("causal", False)
    attributes["causal"] = np.int64(_CAUSAL[causal if isinstance(causal, str) else bool(causal)])
    attributes["normalize"] = np.int64(not is_normalized(options))
    for name in ("score", "mask_text"):
        if name in options:
            attributes[name] = options[name]
    if "captures" in options:
        captures = options["captures"]
        attributes["capture_names"] = " ".join(f"{name}:{captures[name].ndim}" for name in sorted(captures))
    for name, value in options.items():
        kind = OPTIONS[name].kind if name in OPTIONS else "tensor"
        if kind in _ATTRIBUTES and name not in SEEDS:
            attributes[name] = _ATTRIBUTES[kind](value)
    return tuple(sorted(attributes.items()))


def captures_as_operands(given: dict[str, Any]) -> dict[str, Array]:
    """The captures of a call by the names that its operands have: in the order of the names in "capture_names"."""
    captures = captures_of(given)
    return {
        operand: jnp.asarray(captures[name]) for operand, name in zip(CAPTURE_NAMES, sorted(captures), strict=False)
    }


def signed(number: int) -> np.int64:
    """A 64-bit number without a sign, of which attributes of a call have none, by its bits."""
    return np.uint64(number).astype(np.int64)


# What an option is as an attribute of a call; seed and offset are operands.
_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "number": np.float32,
    "integer": np.int64,
    "flag": np.int64,
    "word": signed,
}
