# SPDX-License-Identifier: Apache-2.0
"""strobe.jax under jax.vmap, jax.checkpoint, jax.export and further derivatives; keys and scales that are learnt."""

import jax
import numpy as np
import pytest
import reference
import strobe
import strobe.jax

jnp = jax.numpy
SAMPLES, BATCH, SEQLEN, HEADS = 3, 2, 24, 4


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def qkv(*leading, heads_kv=2):
    heads = (HEADS, heads_kv, heads_kv)
    return [
        draw(i, *leading, SEQLEN, n, columns) for i, (n, columns) in enumerate(zip(heads, (16, 16, 8), strict=True))
    ]


def arrays_of(name, *leading):
    """Options that differ between samples where there are leading axes, by the name of a case."""
    lengths = jnp.asarray(np.random.default_rng(3).integers(0, SEQLEN + 1, (*leading, BATCH)), jnp.int32)
    return {
        "none": {},
        "lengths": {"seqused_k": lengths},
        "bias": {"bias": draw(4, *leading, BATCH, HEADS, SEQLEN, SEQLEN)},
        "bias of all": {"bias": draw(4, *leading, 1, HEADS, SEQLEN, SEQLEN)},
        "alibi": {"alibi_slopes": draw(5, *leading, HEADS) ** 2},
        "alibi of sequences": {"alibi_slopes": draw(5, *leading, BATCH, HEADS) ** 2},
        "sink": {"sink": draw(6, *leading, HEADS)},
        "mask": {"mask": draw(7, *leading, BATCH, SEQLEN) > -1},
        "blocks": {"block_mask": jnp.ones((*leading, 1, 1, 1, 1), bool)},
    }[name]


LEARNT = ("q", "k", "v", "bias", "sink")


def gradients(tensors):
    learnt = {name: x for name, x in tensors.items() if name in LEARNT}

    def loss(learnt):
        o, lse = strobe.jax.attention(**(tensors | learnt), return_lse=True)
        return jnp.sum(jnp.sin(o)) + jnp.sum(jnp.where(jnp.isfinite(lse), lse, 0)), (o, lse)

    return jax.grad(loss, has_aux=True)(learnt)


@pytest.mark.parametrize("differ", [True, False], ids=["own", "shared"])
@pytest.mark.parametrize(
    "name", ["none", "lengths", "bias", "bias of all", "alibi", "alibi of sequences", "sink", "mask", "blocks"]
)
def test_vmap(name, differ):
    """Of results and gradients, where every sample has its own options, or all have the same."""
    own = dict(zip("qkv", qkv(SAMPLES, BATCH), strict=True))
    shared = {} if differ else arrays_of(name)
    own |= arrays_of(name, SAMPLES) if differ else {}
    results = jax.jit(jax.vmap(lambda own: gradients(own | shared)))(own)
    for sample in range(SAMPLES):
        wanted = gradients({key: x[sample] for key, x in own.items()} | shared)
        jax.tree.map(lambda a, b, i=sample: np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-5), results, wanted)


def test_vmap_of_some():
    """Of k and v with one q, along an axis that is not the first, and the gradient of the whole."""
    q, k, v = qkv(BATCH)
    keys = jnp.stack([k, k + 1, -k], axis=2)
    mapped = jax.vmap(lambda k: strobe.jax.attention(q, k, v, causal=True), in_axes=2, out_axes=1)
    for sample in range(3):
        np.testing.assert_array_equal(
            mapped(keys)[:, sample], strobe.jax.attention(q, keys[:, :, sample], v, causal=True)
        )
    gradient = jax.grad(lambda q: jnp.sum(jax.vmap(lambda k: strobe.jax.attention(q, k, v), in_axes=2)(keys)))(q)
    wanted = sum(jax.grad(lambda q, i=i: jnp.sum(strobe.jax.attention(q, keys[:, :, i], v)))(q) for i in range(3))
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"packed": True}])
def test_vmap_that_is_a_loop(options):
    """A mask of dropout depends on a sequence's number in its call, and packed sequences have their own lengths."""
    seeds = jnp.arange(SAMPLES, dtype=jnp.uint32)
    packed = "packed" in options
    tensors = qkv(SAMPLES) if packed else qkv(SAMPLES, BATCH)

    def call(seed, q, k, v):
        lengths = jnp.stack([jnp.int32(0), seed.astype(jnp.int32) + 3, jnp.int32(SEQLEN)])
        given = {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths} if packed else options | {"seed": seed}
        return strobe.jax.attention(q, k, v, **given)

    mapped = jax.jit(jax.vmap(call))(seeds, *tensors)
    for sample in range(SAMPLES):
        np.testing.assert_array_equal(mapped[sample], call(seeds[sample], *(x[sample] for x in tensors)))


def calls_in(function, *arguments):
    text = jax.jit(function).lower(*arguments).as_text()
    return text.count("@strobe_forward"), text.count("@strobe_backward")


def test_vmap_is_one_call():
    assert calls_in(jax.vmap(strobe.jax.attention), *qkv(SAMPLES, BATCH)) == (1, 0)
    text = jax.jit(jax.vmap(strobe.jax.attention)).lower(*qkv(SAMPLES, BATCH)).as_text()
    assert "while" not in text


def test_without_jit():
    q, k, v = qkv(BATCH)
    with jax.disable_jit():
        found = jax.value_and_grad(lambda q: jnp.sum(strobe.jax.attention(q, k, v)))(q)
    wanted = jax.value_and_grad(lambda q: jnp.sum(strobe.jax.attention(q, k, v)))(q)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, wanted)


def test_checkpoint():
    """Policies that save the results of the forward leave one forward in the program; others compute it again."""
    q, k, v = qkv(BATCH)

    def loss(policy):
        def layer(q):
            return jnp.sum(jnp.sin(strobe.jax.attention(jnp.cos(q), k, v)))

        return jax.value_and_grad(jax.checkpoint(layer, policy=policy))

    policies = jax.checkpoint_policies
    saved = loss(policies.save_only_these_names("strobe_out", "strobe_lse"))
    recomputed = loss(policies.nothing_saveable)
    assert calls_in(saved, q) == (1, 1)
    assert calls_in(recomputed, q) == (2, 1)
    jax.tree.map(np.testing.assert_array_equal, saved(q), recomputed(q))


def test_scan():
    """Layers in jax.lax.scan, with jax.checkpoint."""
    q, k, v = qkv(BATCH)
    v = jnp.concatenate([v, v], -1)

    def run(q, layers):
        def layer(x, scale):
            return x + strobe.jax.attention(x, k * scale, v), None

        return jnp.sum(jax.lax.scan(jax.checkpoint(layer), q, layers)[0])

    layers = jnp.asarray([0.5, 2.0])
    found = jax.jit(jax.grad(run, argnums=(0, 1)))(q, layers)

    def unrolled(q, layers):
        for scale in layers:
            q = q + strobe.jax.attention(q, k * scale, v)
        return jnp.sum(q)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        *(found, jax.grad(unrolled, argnums=(0, 1))(q, layers)),
    )


def test_derivatives_that_are_missing():
    q, k, v = qkv(1)

    def loss(q):
        return jnp.sum(strobe.jax.attention(q, k, v))

    for call in (jax.hessian(loss), jax.jit(jax.hessian(loss)), jax.grad(lambda q: jnp.sum(jax.grad(loss)(q)))):
        with pytest.raises(NotImplementedError, match="second derivatives of attention are not there"):
            call(q)
    with pytest.raises(NotImplementedError, match="max_logits is part of the loss: it has no gradient"):
        jax.grad(lambda q: strobe.jax.attention(q, k, v, return_max_logits=True)[1].sum())(q)
    jax.grad(lambda q: strobe.jax.attention(q, k, v, return_max_logits=True)[0].sum())(q)  # the next call works


def test_gradients_of_max_logits_beside():
    """A call that returns max_logits has the gradients of one that does not."""
    q, k, v = qkv(BATCH)
    beside = jax.grad(lambda q: strobe.jax.attention(q, k, v, return_max_logits=True)[0].sum())(q)
    np.testing.assert_array_equal(beside, jax.grad(lambda q: strobe.jax.attention(q, k, v).sum())(q))


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_learnt_scale(heads, dtype):
    """Its gradient is sum(dS S) / scale; against the float64 of JAX."""
    q, k, v = (x.astype(dtype) for x in qkv(BATCH, heads_kv=HEADS))
    scale = jnp.asarray([0.3, -0.2, 0.0, 1.5]) if heads else jnp.float32(0.3)

    def loss(scale, q, k, v):
        return jnp.sum(jnp.sin(strobe.jax.attention(q, k, v, scale=scale).astype(jnp.float32)))

    def plain(scale, q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (scale[:, None, None] if heads else scale)
        return jnp.sum(jnp.sin(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)))

    found = jax.jit(jax.value_and_grad(loss))(scale, q, k, v)
    with jax.enable_x64(True):
        exact = [jnp.asarray(np.asarray(x, np.float64)) for x in (scale, q, k, v)]
        wanted = jax.value_and_grad(plain)(*exact)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 0.03, "atol": 0.15}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, wanted)


def test_scales_that_are_wrong():
    q, k, v = qkv(BATCH)
    with pytest.raises(ValueError, match=r"scale has shape \[3\]: it must be a number or \[heads_q\], \[4\]"):
        strobe.jax.attention(q, k, v, scale=jnp.ones(3))
    with pytest.raises(TypeError, match="scale is int32: it must be floating point"):
        jax.jit(lambda scale: strobe.jax.attention(q, k, v, scale=scale))(2)
    with pytest.raises(TypeError, match="softcap is traced, but it is a constant of the compiled program"):
        jax.grad(lambda softcap: strobe.jax.attention(q, k, v, softcap=softcap).sum())(2.0)
    quantised = strobe.quantize(q, k, v)
    with pytest.raises(TypeError, match="scale is an array and q is int8: with 8-bit tensors it must be a number"):
        strobe.jax.attention(quantised.q, quantised.k, quantised.v, **(quantised.options | {"scale": jnp.ones(4)}))


def test_keys():
    """A key draws the mask of the words that jax.random draws from it."""
    q, k, v = qkv(BATCH, heads_kv=HEADS)
    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        low, high = (int(x) for x in jax.random.bits(key, (2,), jnp.uint32))
        mask = strobe.dropout_mask((BATCH, HEADS, SEQLEN, SEQLEN), 0.5, seed=low + (high << 32), offset=9)
        wanted, _, _ = reference.attention(q, k, v, dropout=0.5, keep=mask)
        call = jax.jit(lambda key: strobe.jax.attention(q, k, v, dropout=0.5, key=key, offset=9))
        np.testing.assert_allclose(call(key), wanted, atol=1e-5)
        assert (np.asarray(call(jax.random.split(key)[0])) != np.asarray(call(key))).any()


def test_gradients_take_the_keys_mask():
    """The gradient of V is that of the dropped probabilities."""
    q, k, v = qkv(BATCH, heads_kv=HEADS)
    key, d_o = jax.random.key(4), draw(9, BATCH, SEQLEN, HEADS, 8)
    low, high = (int(x) for x in jax.random.bits(key, (2,), jnp.uint32))
    mask = strobe.dropout_mask((BATCH, HEADS, SEQLEN, SEQLEN), 0.5, seed=low + (high << 32))
    p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4, -1) * mask * 2
    found = jax.grad(lambda v: jnp.sum(strobe.jax.attention(q, k, v, dropout=0.5, key=key) * d_o))(v)
    np.testing.assert_allclose(found, jnp.einsum("bhqk,bqhd->bkhd", p, d_o), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"key": 3}, TypeError, "key is of type int: it must be a key, as jax.random.key(0) gives it"),
        ({"key": jnp.zeros(2)}, TypeError, "key is float32: it must be a key"),
        ({"key": jnp.zeros((3, 2), jnp.uint32)}, ValueError, "key has shape [3, 2]: it must be one key"),
        ({"key": jax.random.split(jax.random.key(0), 3)}, ValueError, "key has shape [3]: it must be one key"),
        ({"key": jax.random.key(0), "seed": 1}, ValueError, "key and seed are given: give one of them"),
    ],
)
def test_what_is_no_key(options, error, message):
    with pytest.raises(error) as caught:
        strobe.jax.attention(*qkv(BATCH), dropout=0.5, **options)
    assert str(caught.value).startswith(message)


def test_export():
    """With its checks, forward and backward."""
    tensors = qkv(BATCH)
    loss = jax.jit(lambda *x: jnp.sum(strobe.jax.attention(*x, causal=True)))
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    jax.tree.map(
        np.testing.assert_array_equal, jax.export.export(gradient)(*tensors).call(*tensors), gradient(*tensors)
    )
    exported = jax.export.export(loss)(*tensors)
    np.testing.assert_array_equal(exported.call(*tensors), loss(*tensors))
    jax.tree.map(np.testing.assert_array_equal, exported.vjp().call(*tensors, jnp.float32(1)), gradient(*tensors))


@pytest.mark.parametrize("mask", [False, True])
def test_export_of_symbolic_shapes(mask):
    """One program for all batches and lengths; what is wrong is said when it runs."""
    batch, queries, keys = jax.export.symbolic_shape("batch, queries, keys")

    def call(q, k, v, mask):
        options = {"mask": mask} if mask is not None else {}
        return jax.value_and_grad(lambda q: jnp.sum(strobe.jax.attention(q, k, v, **options)))(q)

    shapes = [
        jax.ShapeDtypeStruct(shape, jnp.float32)
        for shape in ((batch, queries, HEADS, 16), (batch, keys, 2, 16), (batch, keys, 2, 8))
    ]
    shapes.append(jax.ShapeDtypeStruct((batch, keys), bool) if mask else None)
    exported = jax.export.export(jax.jit(call))(*shapes)
    for n, sq, sk in ((1, 7, 12), (3, 1, 5)):
        tensors = [draw(1, n, sq, HEADS, 16), draw(2, n, sk, 2, 16), draw(3, n, sk, 2, 8)]
        tensors.append(draw(4, n, sk) > -1 if mask else None)
        jax.tree.map(np.testing.assert_array_equal, exported.call(*tensors), jax.jit(call)(*tensors))
