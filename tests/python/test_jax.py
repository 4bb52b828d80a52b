# SPDX-License-Identifier: Apache-2.0
"""strobe.jax: eager, compiled, differentiated, batched; against the float64 reference and the NumPy interface."""

import jax
import numpy as np
import pytest
import reference
import strobe
import strobe.jax

jnp = jax.numpy


@pytest.fixture
def qkv():
    generator = np.random.default_rng(5)
    shapes = ((2, 30, 4, 16), (2, 40, 2, 16), (2, 40, 2, 8))
    return [jnp.asarray(generator.standard_normal(shape, dtype=np.float32)) for shape in shapes]


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


OPTIONS = {
    "none": {},
    "causal": {"causal": True, "window": (9, -1), "scale": 0.2, "softcap": 5.0},
    "bias and sink": {"bias": draw(1, 1, 4, 30, 40), "sink": draw(2, 4)},
    "alibi": {"alibi_slopes": draw(3, 4) ** 2, "causal": "top_left"},
    "chunk": {"chunk": 16},
    "bool block_mask": {"block_mask": jnp.ones((1, 1, 1, 1), bool), "block_size": 64},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("compiled", [False, True])
def test_options(qkv, name, compiled):
    options = OPTIONS[name]

    def call(q, k, v):
        return strobe.attention(q, k, v, return_lse=True, return_max_logits=True, **options)

    results = (jax.jit(call) if compiled else call)(*qkv)
    assert all(isinstance(x, jax.Array) for x in results)
    for result, wanted in zip(results, reference.attention(*qkv, **options), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5)


def test_gradients(qkv):
    bias, sink = OPTIONS["bias and sink"].values()
    d_o, d_lse = draw(4, 2, 30, 4, 8), draw(5, 2, 4, 30)

    def loss(q, k, v, bias, sink):
        o, lse = strobe.jax.attention(q, k, v, bias=bias, sink=sink, return_lse=True)
        return (o * d_o).sum() + (lse * d_lse).sum()

    gradients = jax.jit(jax.grad(loss, argnums=range(5)))(*qkv, bias, sink)
    arrays = [np.asarray(x) for x in (*qkv, bias, sink)]
    options = {"bias": arrays[3], "sink": arrays[4]}
    o, lse = strobe.attention(*arrays[:3], return_lse=True, **options)
    wanted = strobe.attention_backward(
        *(np.asarray(d_o), *arrays[:3], o, lse),
        **{"d_lse": np.asarray(d_lse), "return_d_bias": True, "return_d_sink": True, **options},
    )
    for a, b in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    only_out = jax.grad(lambda q: strobe.jax.attention(q, *qkv[1:]).sum())(qkv[0])
    assert only_out.shape == qkv[0].shape


def test_packed(qkv):
    q, k, v = (x[0] for x in (qkv[0], qkv[0], qkv[0]))
    cu_seqlens = jnp.asarray([0, 12, 30], jnp.int32)

    def call(q, k, v, cu_seqlens):
        return strobe.jax.attention(q, k, v, causal=True, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)

    o = jax.jit(call)(q, k, v, cu_seqlens)
    alone = strobe.attention(*(np.asarray(x[None, 12:]) for x in (q, k, v)), causal=True)
    np.testing.assert_allclose(o[12:], alone[0], rtol=1e-6, atol=1e-6)
    jax.grad(lambda q: call(q, k, v, cu_seqlens).sum())(q)


def test_dropout(qkv):
    arrays = [np.asarray(x) for x in qkv]
    seed = 2**40 + 3
    wanted = strobe.attention(*arrays, dropout=0.4, seed=seed, offset=2)
    assert (strobe.jax.attention(*qkv, dropout=0.4, seed=seed, offset=2) == wanted).all()
    traced = jax.jit(lambda seed: strobe.jax.attention(*qkv, dropout=0.4, seed=seed))
    assert (traced(jnp.uint32(7)) == strobe.attention(*arrays, dropout=0.4, seed=7)).all()


def test_half_precision_and_vmap(qkv):
    half = [x.astype(jnp.bfloat16) for x in qkv]
    assert strobe.jax.attention(*half).dtype == jnp.bfloat16
    stacked = [jnp.stack([x, x + 1]) for x in qkv]
    batched = jax.vmap(strobe.jax.attention)(*stacked)
    for index in range(2):
        assert (batched[index] == strobe.jax.attention(*(x[index] for x in stacked))).all()


def test_rejections(qkv):
    q, k, v = qkv
    with pytest.raises(ValueError, match="k has head_dim 8 and q has 16: they must be equal"):
        jax.jit(strobe.jax.attention)(q, k[..., :8], v)
    with pytest.raises(ValueError, match="scale is nan: it must be finite"):
        strobe.jax.attention(q, k, v, scale=float("nan"))
    with pytest.raises(TypeError, match="softmax_scale is no option of strobe"):
        strobe.jax.attention(q, k, v, softmax_scale=1.0)
    with pytest.raises(ValueError, match="out is given, but JAX's arrays are never written to: take what the call"):
        strobe.attention(q, k, v, out=q)
    with pytest.raises(NotImplementedError, match="alibi_slopes requires a gradient, which attention does not have"):
        jax.grad(lambda slopes: strobe.jax.attention(q, k, v, alibi_slopes=slopes).sum())(jnp.ones(4))
    with pytest.raises(Exception, match=r"seqused_k\[0\] is 99: it must be from 0 to the sequence's length"):
        strobe.jax.attention(q, k, v, seqused_k=jnp.asarray([99, 1], jnp.int32)).block_until_ready()
