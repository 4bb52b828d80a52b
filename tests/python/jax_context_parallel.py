# SPDX-License-Identifier: Apache-2.0
"""strobe.jax.context_parallel on a mesh of four devices, which test_jax_context_parallel.py has XLA make of one CPU."""

import sys

import jax
import numpy as np
import strobe.jax
from jax.sharding import AxisType, PartitionSpec
from strobe.jax import context_parallel

jnp = jax.numpy
P = PartitionSpec
DEVICES, BATCH, SEQLEN, HEADS = 4, 2, 48, 4


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


ARRAYS = {
    "q": draw(1, BATCH, SEQLEN, HEADS, 16),
    "k": draw(2, BATCH, SEQLEN, 2, 16),
    "v": draw(3, BATCH, SEQLEN, 2, 8),
}
CASES = {
    "causal": {"causal": True, "window": (19, 0), "sink": draw(4, HEADS), "alibi_slopes": draw(5, HEADS) ** 2},
    "no mask": {"window": (-1, 3), "softcap": 2.0, "bias": draw(6, BATCH, HEADS, SEQLEN, SEQLEN)},
    "chunks": {"causal": True, "chunk": 16, "dropout": 0.3, "seed": 5},
    "row-invariant": {"causal": True, "row_invariant": True},
}
LEARNT = ("q", "k", "v", "sink", "bias")


def loss_of(out, lse):
    return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.log1p(jnp.exp(lse)))


def with_gradients(attend, arrays, rest):
    def loss(learnt):
        out, lse = attend(**learnt, **rest)
        return loss_of(out, lse), (out, lse)

    gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))(arrays)
    return [*outputs, *(gradients[name] for name in arrays)]


def shared(options, scheme, layout):
    """The same function of whole arrays, by four devices."""
    mesh = jax.make_mesh((DEVICES,), ("context",), axis_types=(AxisType.Auto,))
    places = {
        "q": P(None, "context"),
        "k": P(None, "context"),
        "v": P(None, "context"),
        "bias": P(None, None, "context"),
    }
    constants = {name: x for name, x in options.items() if not isinstance(x, np.ndarray)}

    def attend(**arrays):
        axes = {"q": 1, "k": 1, "v": 1, "bias": 2}
        arranged = {
            name: context_parallel.arrange(x, DEVICES, axes[name], layout=layout) if name in axes else x
            for name, x in arrays.items()
        }

        @jax.shard_map(
            mesh=mesh,
            in_specs=({name: places.get(name, P()) for name in arrays},),
            out_specs=(P(None, "context"), P(None, None, "context")),
        )
        def part(arrays):
            return context_parallel.attention(
                axis_name="context", scheme=scheme, layout=layout, return_lse=True, **arrays, **constants
            )

        out, lse = part(arranged)
        return tuple(context_parallel.restore(x, DEVICES, axis, layout=layout) for x, axis in ((out, 1), (lse, 2)))

    return attend


def check(name, scheme, layout):
    options = CASES[name]
    arrays = {n: x for n, x in (ARRAYS | options).items() if isinstance(x, np.ndarray)}
    learnt = {n: x for n, x in arrays.items() if n in LEARNT}
    rest = {n: x for n, x in arrays.items() if n not in LEARNT}
    constants = {n: x for n, x in options.items() if n not in arrays}

    def alone(**arrays):
        return strobe.jax.attention(return_lse=True, **arrays, **constants)

    wanted = with_gradients(alone, learnt, rest)
    mine = with_gradients(shared(options, scheme, layout), learnt, rest)
    for number, (a, b) in enumerate(zip(mine, wanted, strict=True)):
        if options.get("row_invariant") and number < 2:
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=f"{name}, {scheme}, {layout}, {number}")


def check_positions():
    mesh = jax.make_mesh((DEVICES,), ("context",), axis_types=(AxisType.Auto,))
    for layout in ("zigzag", "contiguous"):
        rows = jax.shard_map(
            lambda layout=layout: context_parallel.positions("context", SEQLEN // DEVICES, layout=layout),
            mesh=mesh,
            in_specs=(),
            out_specs=P("context"),
        )()
        wanted = context_parallel.arrange(jnp.arange(SEQLEN), DEVICES, 0, layout=layout)
        np.testing.assert_array_equal(rows, wanted)


def refused(error, message, **options):
    q = jnp.zeros((1, 8, 2, 8))
    try:
        shared(options, options.pop("scheme", "gather"), "zigzag")(q=q, k=q, v=q)
    except error as raised:
        assert message in str(raised), raised
    else:
        raise AssertionError(message)


def main():
    for number, name in enumerate(CASES):
        layouts = ("zigzag", "contiguous")[:: -1 if number % 2 else 1]
        check(name, "gather", layouts[0])
        if name != "row-invariant":
            check(name, "ring", layouts[1])
    check_positions()
    refused(NotImplementedError, "log_length is given", log_length=4)
    refused(NotImplementedError, 'row_invariant is given with scheme="ring"', row_invariant=True, scheme="ring")
    refused(NotImplementedError, 'normalize is "none": parts are merged by their lse', normalize="none")
    refused(ValueError, "scheme is 'tree': it must be gather or ring", scheme="tree")
    sys.stdout.write("as on one device\n")


if __name__ == "__main__":
    main()
