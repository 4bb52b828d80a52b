# SPDX-License-Identifier: Apache-2.0
"""strobe.jax on a mesh of four devices, which test_jax_devices.py has XLA make of one CPU: a case by its name."""

import sys
from functools import partial

import jax
import numpy as np
import strobe
import strobe.jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

jnp = jax.numpy
P = PartitionSpec
BATCH, SEQLEN_Q, SEQLEN_K, HEADS, HEADS_KV = 4, 24, 40, 8, 4


def mesh_of(kind, **axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes))


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def qkv(heads_kv=HEADS_KV):
    return [
        draw(1, BATCH, SEQLEN_Q, HEADS, 16),
        draw(2, BATCH, SEQLEN_K, heads_kv, 16),
        draw(3, BATCH, SEQLEN_K, heads_kv, 8),
    ]


# The options of a call by name, and where their arrays lie when q is at [batch, -, heads, -].
OPTIONS = {
    "none": ({}, {}),
    "causal": ({"causal": True, "window": (9, -1), "softcap": 5.0}, {}),
    "lengths": ({"seqused_k": np.array([40, 3, 0, 17], np.int32)}, {"seqused_k": "b"}),
    "bias": ({"bias": draw(4, BATCH, HEADS, SEQLEN_Q, SEQLEN_K)}, {"bias": "bh"}),
    "bias of all": ({"bias": draw(4, 1, 1, SEQLEN_Q, SEQLEN_K)}, {"bias": ".."}),
    "bias of heads": ({"bias": draw(4, 1, HEADS, SEQLEN_Q, SEQLEN_K)}, {"bias": ".h"}),
    "sink and alibi": (
        {"sink": draw(5, HEADS), "alibi_slopes": draw(6, HEADS) ** 2},
        {"sink": "h", "alibi_slopes": "h"},
    ),
    "alibi of sequences": ({"alibi_slopes": draw(6, BATCH, HEADS) ** 2}, {"alibi_slopes": "bh"}),
    "mask": ({"mask": draw(7, BATCH, SEQLEN_K) > -1}, {"mask": "b"}),
    "blocks": ({"block_mask": np.ones((BATCH, 1, 1, 1), np.uint8)}, {"block_mask": "b."}),
    "scale": ({"scale": draw(8, HEADS) ** 2}, {"scale": "h"}),
}
LEARNT = ("bias", "sink", "scale")


def whole_and_split(name, mesh, batch, heads, heads_kv=HEADS_KV):
    """The tensors of a call on one device, and on the mesh."""
    options, places = OPTIONS[name]
    arrays = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    constants = {name: x for name, x in options.items() if name not in arrays}
    whole = dict(zip("qkv", qkv(heads_kv), strict=True)) | arrays
    kv = "b.k." if heads_kv != 1 else "b..."
    places = {"q": "b.h.", "k": kv, "v": kv} | places
    axes = {"b": batch, "h": heads, "k": heads, ".": None}
    split = {n: jax.device_put(x, NamedSharding(mesh, P(*(axes[a] for a in places[n])))) for n, x in whole.items()}
    return constants, {n: jnp.asarray(x) for n, x in whole.items()}, split


def functions(constants, names):
    def forward(tensors):
        return strobe.jax.attention(**tensors, return_lse=True, **constants)

    def loss(tensors):
        o, lse = forward(tensors)
        return jnp.sum(jnp.sin(o)) + jnp.sum(jnp.where(jnp.isfinite(lse), lse, 0))

    learnt = [name for name in names if name in ("q", "k", "v", *LEARNT)]

    def gradients(tensors):
        rest = {name: x for name, x in tensors.items() if name not in learnt}
        return jax.grad(lambda learnt: loss(learnt | rest))({name: tensors[name] for name in learnt})

    return jax.jit(forward), jax.jit(gradients)


def text_of(function, *arguments):
    return function.lower(*arguments).compile().as_text()


def check_equal(results, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), results, wanted)


def check_split(name, mesh, batch, heads, heads_kv=HEADS_KV):
    constants, whole, split = whole_and_split(name, mesh, batch, heads, heads_kv)
    forward, gradients = functions(constants, whole)
    for function in (forward, gradients):
        text = text_of(function, split)
        assert "strobe_forward" in text
        assert "all-gather" not in text, text
        assert "all-to-all" not in text, text
        assert "collective-permute" not in text, text
    assert "all-reduce" not in text_of(forward, split)
    o, lse = forward(split)
    assert o.sharding.is_equivalent_to(NamedSharding(mesh, P(batch, None, heads)), 4), o.sharding
    assert lse.sharding.is_equivalent_to(NamedSharding(mesh, P(batch, heads)), 3), lse.sharding
    check_equal((o, lse), forward(whole))
    found = gradients(split)
    check_equal(found, gradients(whole))
    for tensor in found:
        assert found[tensor].sharding.is_equivalent_to(split[tensor].sharding, found[tensor].ndim), tensor


def check_placed(kind):
    for name in OPTIONS:
        check_split(name, mesh_of(kind, x=2, y=2), "x", "y")
    check_split("none", mesh_of(kind, x=4), "x", None)
    check_split("none", mesh_of(kind, x=4), None, "x")
    check_split("bias", mesh_of(kind, x=2, y=2), ("x", "y"), None)
    check_split("sink and alibi", mesh_of(kind, x=2, y=2), None, ("x", "y"))
    check_split("bias", mesh_of(kind, x=2, y=2), "x", "y", heads_kv=1)


def compiler_places():
    """Axes of type Auto, as jax.sharding.Mesh has them."""
    check_placed(AxisType.Auto)


def types_place():
    """Axes of type Explicit, as jax.make_mesh has them."""
    check_placed(AxisType.Explicit)


def forward_mode():
    """Tangents of q, k and v, computed where their tensors lie; jacfwd's are of a batch of directions."""

    def tangent(tensors, directions, constants):
        rest = {name: x for name, x in tensors.items() if name not in directions}
        attend = lambda qkv: strobe.jax.attention(**qkv, **rest, return_lse=True, **constants)  # noqa: E731
        return jax.jvp(attend, ({name: tensors[name] for name in directions},), (directions,))

    for kind in (AxisType.Auto, AxisType.Explicit):
        for name, batch, heads, heads_kv in (
            ("none", "x", "y", HEADS_KV),
            ("causal", "x", "y", HEADS_KV),
            ("lengths", "x", "y", HEADS_KV),
            ("bias", ("x", "y"), None, HEADS_KV),
            ("sink and alibi", None, ("x", "y"), HEADS_KV),
            ("bias of heads", "x", "y", 1),
        ):
            mesh = mesh_of(kind, x=2, y=2)
            constants, whole, split = whole_and_split(name, mesh, batch, heads, heads_kv)
            drawn = {n: draw(20 + i, *whole[n].shape) for i, n in enumerate("qkv")}
            placed = {n: jax.device_put(x, split[n].sharding) for n, x in drawn.items()}
            function = jax.jit(partial(tangent, constants=constants))
            text = text_of(function, split, placed)
            assert "strobe_tangent" in text
            for moved in ("all-gather", "all-to-all", "collective-permute", "all-reduce"):
                assert moved not in text, (name, moved)
            found = function(split, placed)
            check_equal(found, function(whole, drawn))
            for o, lse in found:
                check_place(o, NamedSharding(mesh, P(batch, None, heads)))
                check_place(lse, NamedSharding(mesh, P(batch, heads)))


def what_is_gathered():
    """Arrays that lie on a mesh otherwise give what they give on one device."""
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = mesh_of(kind, x=4)
        for name, q_place, k_place in (
            ("causal", P(None, "x"), P(None, "x")),  # by the sequence
            ("causal", P(None, None, None, "x"), P()),  # by the columns
            ("bias", P("x"), P(None, None, "x")),
            ("sink and alibi", P(None, None, "x"), P()),
        ):
            constants, whole, _ = whole_and_split(name, mesh, None, None)
            places = dict.fromkeys(whole, P()) | {"q": q_place, "k": k_place, "v": k_place}
            split = {n: jax.device_put(x, NamedSharding(mesh, places[n])) for n, x in whole.items()}
            for function in functions(constants, whole):
                check_equal(function(split), function(whole))
        constants, whole, split = whole_and_split("none", mesh, None, "x", heads_kv=1)
        check_equal(functions(constants, whole)[1](split), functions(constants, whole)[1](whole))
        two = whole_and_split("none", mesh, None, None, heads_kv=2)[1]  # of four devices
        split = {
            n: jax.device_put(x, NamedSharding(mesh, P(None, None, "x" if n == "q" else None))) for n, x in two.items()
        }
        check_equal(functions({}, two)[1](split), functions({}, two)[1](two))


def dropout():
    """The mask of a call on a mesh is that of one device."""
    x = jnp.asarray(qkv()[0])
    call = jax.jit(
        jax.value_and_grad(lambda x, key: jnp.sum(jnp.sin(strobe.jax.attention(x, x, x, dropout=0.5, key=key))))
    )
    for kind in (AxisType.Auto, AxisType.Explicit):
        split = jax.device_put(x, NamedSharding(mesh_of(kind, x=4), P("x")))
        check_equal(call(split, jax.random.key(7)), call(x, jax.random.key(7)))


def packed():
    """Heads are split; cu_seqlens lie on every device."""
    lengths = jnp.asarray([0, 5, 24], jnp.int32)
    tensors = {"q": draw(1, SEQLEN_Q, HEADS, 16), "k": draw(2, SEQLEN_Q, 4, 16), "v": draw(3, SEQLEN_Q, 4, 16)}
    whole = tensors | {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths}
    for kind in (AxisType.Auto, AxisType.Explicit):
        place = NamedSharding(mesh_of(kind, x=4), P(None, "x"))
        split = whole | {name: jax.device_put(x, place) for name, x in tensors.items()}
        forward, gradients = functions({"causal": True}, whole)
        for function in (forward, gradients):
            assert "all-gather" not in text_of(function, split)
            check_equal(function(split), function(whole))
        check_place(forward(split)[0], place)


def eight_bits():
    """The quantised tensors of one device, split by heads."""
    mesh = mesh_of(AxisType.Auto, x=4)
    x = strobe.quantize(*(jnp.asarray(x) for x in qkv()))
    whole = {"q": x.q, "k": x.k, "v": x.v} | x.options
    constants = {name: whole.pop(name) for name in list(whole) if not isinstance(whole[name], jax.Array)}
    places = {"q": P(None, None, "x"), "k": P(None, None, "x"), "v": P(None, "x")}
    split = whole | {name: jax.device_put(whole[name], NamedSharding(mesh, place)) for name, place in places.items()}
    forward = jax.jit(lambda tensors: strobe.jax.attention(**tensors, return_lse=True, **constants))
    assert "all-gather" not in text_of(forward, split)
    check_equal(forward(split), forward(whole))


def shard_map():
    """With its checks: value_and_grad inside and outside, tensors that are on every device, gradients of those."""
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = mesh_of(kind, x=2, y=2)
        for name, batch, heads in (("none", "x", "y"), ("bias of all", ("x", "y"), None)):
            constants, whole, split = whole_and_split(name, mesh, batch, heads)
            _, gradients = functions(constants, whole)
            specs = {n: x.sharding.spec for n, x in split.items()}

            def attend(tensors, constants=constants):
                return strobe.jax.attention(**tensors, return_lse=True, **constants)

            mapped = jax.jit(
                jax.shard_map(
                    *(attend,), mesh=mesh, in_specs=(specs,), out_specs=(P(batch, None, heads), P(batch, heads))
                )
            )
            assert "all-gather" not in text_of(mapped, split)
            check_equal(mapped(split), attend(whole))

            def outside(tensors, mapped=mapped):
                o, lse = mapped(tensors)
                return jnp.sum(jnp.sin(o)) + jnp.sum(lse)

            value, found = jax.jit(jax.value_and_grad(outside))(split)
            check_equal(found, gradients(whole))

            def inside(tensors, attend=attend):
                o, lse = attend(tensors)
                return jax.lax.psum(jnp.sum(jnp.sin(o)) + jnp.sum(lse), ("x", "y"))

            mapped = jax.shard_map(jax.value_and_grad(inside), mesh=mesh, in_specs=(specs,), out_specs=(P(), specs))
            total, found = jax.jit(mapped)(split)
            check_equal(found, gradients(whole))
            check_equal(total, value)


def partly_manual():
    """shard_map of one axis of the mesh; the compiler places along the other."""
    mesh = mesh_of(AxisType.Auto, x=2, y=2)
    constants, whole, split = whole_and_split("none", mesh, "x", "y")
    forward, _ = functions(constants, whole)
    mapped = jax.shard_map(*(forward,), mesh=mesh, in_specs=(P("x"),), out_specs=(P("x"), P("x")), axis_names={"x"})
    check_equal(jax.jit(mapped)(split), forward(whole))


def both_kinds():
    """A mesh with an axis of each type; the compiler's is gathered."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    constants, whole, split = whole_and_split("causal", mesh, "x", "y")
    for function in functions(constants, whole):
        check_equal(function(split), function(whole))


def vmap():
    """Samples that lie on devices are computed there, with their gradients."""

    def loss(tensors, shared):
        return jnp.sum(jnp.sin(strobe.jax.attention(**tensors, **shared)))

    arrays = [draw(i, BATCH, 2, SEQLEN_Q, heads, 16) for i, heads in enumerate((HEADS, HEADS_KV, HEADS_KV))]
    whole = dict(zip("qkv", map(jnp.asarray, arrays), strict=True))
    shared = {"bias": jnp.asarray(draw(4, 1, HEADS, SEQLEN_Q, SEQLEN_Q))}
    for kind in (AxisType.Auto, AxisType.Explicit):
        place = NamedSharding(mesh_of(kind, x=4), P("x"))
        split = {name: jax.device_put(x, place) for name, x in whole.items()}
        for argnums in (0, (0, 1)):
            function = jax.jit(jax.vmap(jax.value_and_grad(loss, argnums), in_axes=(0, None)))
            assert "all-gather" not in text_of(function, split, shared)
            found = function(split, shared)
            check_equal(found, function(whole, shared))
            jax.tree.map(lambda x, place=place: check_place(x, place), found)


def check_place(x, place):
    assert x.sharding.is_equivalent_to(place, x.ndim), x.sharding


def export():
    """Of programs for four devices: where their types place the arrays, and an error where the compiler would."""
    mesh = mesh_of(AxisType.Explicit, x=2, y=2)
    constants, whole, split = whole_and_split("causal", mesh, "x", "y")
    forward, _ = functions(constants, whole)
    exported = jax.export.export(forward)(split)
    check_equal(exported.call(split), forward(whole))
    constants, whole, split = whole_and_split("causal", mesh_of(AxisType.Auto, x=2, y=2), "x", "y")
    try:
        jax.export.export(functions(constants, whole)[0])(split)
    except NotImplementedError as error:
        assert "jax.export of attention on 4 devices" in str(error)
    else:
        raise AssertionError("exported")


if __name__ == "__main__":
    assert len(jax.devices()) == 4
    for name in sys.argv[1:]:
        globals()[name]()
