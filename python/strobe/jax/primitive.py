# SPDX-License-Identifier: Apache-2.0
"""A call of Strobe's as a primitive of JAX; batching.py and derivatives.py have the rules of vmap, grad and jvp."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from strobe._option_list import CAPTURE_NAMES
from strobe.jax.axes import TANGENTS
from strobe.jax.call import Call, Tensors, result_types
from strobe.jax.internals import needs_devices
from strobe.jax.sharding import lowered, run_by_type

call_p = Primitive("strobe")
call_p.multiple_results = True
needs_devices(call_p)


def bind(target: str, tensors: Tensors, results: Sequence[str], **constants: Any) -> Tensors:
    """The results of the call by name."""
    call = Call(target, operands=tuple(tensors), results=tuple(results), **constants)
    return dict(zip(results, bind_call(call, *tensors.values()), strict=True))


def bind_call(call: Call, *operands: Array) -> Sequence[Array]:
    """The results of the call, which lie on devices as its operands do."""
    return run_by_type(call, partial(_bind_varying, call), *operands)


def _bind_varying(call: Call, *operands: Array) -> Sequence[Array]:
    """In jax.shard_map the results vary wherever one of the operands does."""
    axes = frozenset[Any]().union(*map(_varying_axes, operands))
    return call_p.bind(*(_varying(x, axes) for x in operands), call=call)


def _varying_axes(tensor: Array) -> frozenset[Any]:
    return jax.typeof(tensor).manual_axis_type.varying


def _varying(tensor: Array, axes: frozenset[Any]) -> Array:
    missing = tuple(sorted(axes - _varying_axes(tensor)))
    return jax.lax.pcast(tensor, missing, to="varying") if missing else tensor


@call_p.def_abstract_eval
def _types(*operands: Any, call: Call) -> list[jax.core.ShapedArray]:
    types = result_types(call, dict(zip(call.operands, operands, strict=True)))
    place = operands[0]
    if place.sharding.mesh.empty:
        return [jax.core.ShapedArray(*x) for x in types.values()]
    sharding = NamedSharding(place.sharding.mesh, PartitionSpec())
    return [
        jax.core.ShapedArray(*x, sharding=sharding, manual_axis_type=place.manual_axis_type) for x in types.values()
    ]


@call_p.def_impl
def _run(*operands: Array, call: Call) -> Any:
    with jax.disable_jit(False):  # which would come back here
        return _compiled(call, *operands)


@partial(jax.jit, static_argnums=0)
def _compiled(call: Call, *operands: Array) -> Any:
    return call_p.bind(*operands, call=call)


def _lower(context: mlir.LoweringRuleContext, *operands: Any, call: Call) -> Any:
    for tensor, tangent in TANGENTS.items():
        if tangent in (*call.operands, *call.results) and tensor not in ("q", "k", "v", "o", "lse"):
            tensor = "a capture" if tensor in CAPTURE_NAMES else tensor
            raise NotImplementedError(
                f"{tensor} has a tangent, which forward-mode derivatives (jvp, jacfwd, linearize) of attention do not "
                "have: take jax.lax.stop_gradient of it, or derivatives by jax.grad, jax.vjp or jax.jacrev"
            )
    return mlir.lower_fun(lowered(call, context.module_context), multiple_results=True)(context, *operands)


mlir.register_lowering(call_p, _lower)
