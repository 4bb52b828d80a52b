# SPDX-License-Identifier: Apache-2.0
"""Forward-mode derivatives of attention in JAX, against JAX's own of the plain equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import strobe.jax
from strobe.jax import attention

BATCH, SEQLEN, HEADS, HEADS_KV, HEAD_DIM = 2, 23, 4, 2, 8
DISTANCE = np.arange(SEQLEN)[None] - np.arange(SEQLEN)[:, None]
BIAS = np.random.default_rng(7).standard_normal((1, HEADS, SEQLEN, SEQLEN), np.float32)


def rows(dtype=jnp.float32, batch=BATCH):
    """q, k and v, and tangents of them."""
    shapes = [(batch, SEQLEN, heads, HEAD_DIM) for heads in (HEADS, HEADS_KV, HEADS_KV)]
    numbers = np.random.default_rng(1)
    drawn = [jnp.asarray(numbers.standard_normal(shape, np.float32), dtype) for shape in 2 * shapes]
    return tuple(drawn[:3]), tuple(drawn[3:])


def plain(q, k, v, *, scale=HEAD_DIM**-0.5, softcap=0.0, bias=0.0, visible=True):
    """o and lse, by the equations."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="highest") * scale
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    scores = jnp.where(visible, scores + bias, -jnp.inf)
    o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v, precision="highest")
    return o, jax.nn.logsumexp(scores, -1)


def output(*x, **options):
    return plain(*x, **options)[0]


CASES = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"visible": DISTANCE <= 0}),
    "softcap": ({"softcap": 1.5, "scale": 0.7}, {"softcap": 1.5, "scale": 0.7}),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("case", CASES)
def test_jvp_is_that_of_the_equations(case, dtype):
    options, equations = CASES[case]
    primals, tangents = rows(dtype)
    compiled = jax.jit(lambda *x: attention(*x, return_lse=True, **options))
    results, (o_tangent, lse_tangent) = jax.jvp(compiled, primals, tangents)
    for result, alone in zip(results, attention(*primals, return_lse=True, **options), strict=True):
        np.testing.assert_array_equal(result, alone)
    _, (exact_o, exact_lse) = jax.jvp(
        lambda *x: plain(*x, **equations), *(tuple(x.astype(jnp.float32) for x in xs) for xs in (primals, tangents))
    )
    # One rounding to the dtype, and float32 arithmetic on both sides.
    np.testing.assert_allclose(o_tangent.astype(jnp.float32), exact_o, rtol=float(jnp.finfo(dtype).eps), atol=3e-5)
    np.testing.assert_allclose(lse_tangent, exact_lse, rtol=1e-5, atol=3e-5)


def test_linearize_and_jacfwd():
    primals, tangents = rows()
    _, linear = jax.linearize(attention, *primals)
    _, exact = jax.jvp(output, primals, tangents)
    np.testing.assert_allclose(linear(*tangents), exact, atol=3e-5)
    q, k, v = (x[:1, :3, :2, :4] for x in primals)
    actual = jax.jacfwd(lambda q: attention(q, k, v))(q)
    np.testing.assert_allclose(actual, jax.jacfwd(lambda q: output(q, k, v, scale=0.5))(q), atol=1e-5)


def test_vmap_inside_and_outside():
    primals, tangents = rows(batch=6)
    samples = [x.reshape(3, 2, *x.shape[1:]) for x in (*primals, *tangents)]
    inside = jax.jvp(jax.vmap(attention), tuple(samples[:3]), tuple(samples[3:]))[1]
    outside = jax.vmap(lambda *x: jax.jvp(attention, x[:3], x[3:])[1])(*samples)
    exact = jax.jvp(output, primals, tangents)[1].reshape(inside.shape)
    np.testing.assert_allclose(inside, exact, atol=3e-5)
    np.testing.assert_allclose(outside, exact, atol=3e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_output_of_a_jvp_trains(compiled):
    """MeanFlow's loss: the tangent is part of a target that is not differentiated."""
    (x, _, _), (direction, _, _) = rows()
    weight = 0.3 * jnp.asarray(np.random.default_rng(3).standard_normal((HEAD_DIM, HEAD_DIM), np.float32))

    def loss(weight, function):
        u, dudt = jax.jvp(lambda z: function(z @ weight, z, z @ weight), (x,), (direction,))
        return jnp.mean((u - jax.lax.stop_gradient(u + dudt) + 0.1 * u) ** 2)

    gradient = jax.grad(lambda weight: loss(weight, attention))
    actual = (jax.jit(gradient) if compiled else gradient)(weight)
    exact = jax.grad(lambda weight: loss(weight, output))(weight)
    np.testing.assert_allclose(actual, exact, rtol=1e-3, atol=1e-6)


def _tangent(q):
    return jax.jvp(lambda q: attention(q, q, q), (q,), (q,))[1]


SECOND = {
    "grad of a tangent": lambda q: jax.grad(lambda q: _tangent(q).sum())(q),
    "jvp of a tangent": lambda q: jax.jvp(_tangent, (q,), (q,)),
    "compiled": lambda q: jax.jit(lambda q: jax.jvp(_tangent, (q,), (q,)))(q),
    "vmap": lambda q: jax.vmap(lambda q: jax.grad(lambda q: _tangent(q).sum())(q))(q[None]),
    "hessian": lambda q: jax.hessian(lambda q: attention(q, q, q).sum())(q),
}


@pytest.mark.parametrize("derivative", SECOND.values(), ids=SECOND)
def test_second_derivatives_raise(derivative):
    (_, x, _), _ = rows()
    with pytest.raises(NotImplementedError, match="second derivatives of attention"):
        derivative(x)
    assert jnp.isfinite(_tangent(x)).all()  # the next call works


def test_tangents_of_what_has_none_raise():
    primals, tangents = rows()
    with pytest.raises(NotImplementedError, match="bias has a tangent"):
        jax.jvp(lambda bias: strobe.jax.attention(*primals, bias=bias), (BIAS,), (BIAS,))
    with pytest.raises(NotImplementedError, match="max_logits has a tangent"):
        jax.jvp(lambda *x: strobe.jax.attention(*x, return_max_logits=True), primals, tangents)
