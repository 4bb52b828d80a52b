# SPDX-License-Identifier: Apache-2.0
"""jax.vmap of a call: its axis joins the batch of one call, or is a loop of calls where results would be others."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.interpreters import batching

from strobe.jax.axes import GRADIENTS, CallAxes
from strobe.jax.call import Call, Tensors, axes_of
from strobe.jax.primitive import bind_call, call_p
from strobe.jax.sharding import is_whole

# Operands with a batch axis that may have the extent 1, for all sequences.
_FOR_ALL = ("bias", "bias_tangent", "block_mask", "q_descale", "k_descale", "v_descale")


def _batch(operands: Sequence[Array], dims: Sequence[int | None], *, call: Call) -> tuple[list[Array], list[int]]:
    tensors = list(zip(call.operands, operands, dims, strict=True))
    batched = {name: jnp.moveaxis(x, dim, 0) for name, x, dim in tensors if dim is not None}
    shared = {name: x for name, x, dim in tensors if dim is None}
    sample = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in batched.items()} | shared
    if (
        is_whole(call)
        or "d_sink" in call.results
        or any(name.startswith("sink") for name in batched)
        or (axes := axes_of(call, sample)).batch is None
    ):
        results = _loop(call, batched, shared)
    else:
        results = _fold(call, axes, batched, shared)
    return results, [0] * len(results)


def _loop(call: Call, batched: Tensors, shared: Tensors) -> list[Array]:
    def run(mapped: Tensors) -> list[Array]:
        tensors = shared | mapped
        return list(bind_call(call, *(tensors[name] for name in call.operands)))

    return jax.lax.map(run, batched)


def _fold(call: Call, axes: CallAxes, batched: Tensors, shared: Tensors) -> list[Array]:
    size = next(iter(batched.values())).shape[0]
    differ = {"bias"} if "d_bias" in call.results else set()  # a gradient for each sample

    def folded(name: str) -> Array:
        x = batched[name] if name in batched else shared[name][None]
        if name not in batched and name not in differ:
            for_all = name in _FOR_ALL and x.shape[1] == 1
            if for_all or "b" not in axes.of(name, x.shape[1:]):
                return shared[name]
        if name == "alibi_slopes" and x.ndim == 2:
            x = x[:, None]
        return jnp.broadcast_to(x, (size, axes.batch, *x.shape[2:])).reshape(size * axes.batch, *x.shape[2:])

    outputs = bind_call(call, *map(folded, call.operands))
    results = [x.reshape(size, axes.batch, *x.shape[1:]) for x in outputs]
    for name in differ:
        batch = batched[name].shape[1] if name in batched else shared[name].shape[0]
        if batch != axes.batch:
            index = call.results.index(GRADIENTS[name])
            results[index] = results[index].sum(1, keepdims=True)
    return results


batching.primitive_batchers[call_p] = _batch
