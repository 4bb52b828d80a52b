# SPDX-License-Identifier: Apache-2.0
"""Score and mask texts in JAX: gradients of captures, compiled calls and vmap."""

import functools

import expression_reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import strobe
import strobe.jax
import torch
from expression_reference import copies, draw

B, SQ, SK, H, D = 2, 21, 33, 4, 16
Q, K, V, D_OUT = (
    x.numpy() for x in (draw(1, B, SQ, H, D), draw(2, B, SK, 2, D), draw(3, B, SK, 2, D), draw(4, B, SQ, H, D))
)
TABLE, TEMPERATURE = draw(5, H, SQ + SK).numpy(), np.float32(1.25)
DOCUMENT = np.broadcast_to(np.arange(SK, dtype=np.int32) % 3, (B, SK))
OPTIONS = {"score": "(score + table[head][k - q + 20]) * temperature", "mask": "document[batch][k] <= 1"}


def attend(q, k, v, table, temperature, **options):
    captures = {"table": table, "temperature": temperature, "document": DOCUMENT}
    return strobe.jax.attention(q, k, v, **OPTIONS, captures=captures, **options)


def loss(*x):
    out, lse = attend(*x, return_lse=True)
    return (out * D_OUT).sum() + (lse**2).sum()


ARRAYS = (Q, K, V, TABLE, jnp.asarray(TEMPERATURE))


def exact():
    q, k, v, table, temperature = given = copies(*(torch.tensor(np.asarray(x)) for x in ARRAYS))
    document = torch.tensor(DOCUMENT)
    out, lse = expression_reference.attention(
        q, k, v,
        lambda s, b, h, i, j: (s + table[h, j - i + 20]) * temperature,
        lambda b, h, i, j: document[b, j] <= 1,
    )  # fmt: skip
    total = (out * torch.tensor(D_OUT)).sum() + lse.square().sum()
    return out.detach().numpy(), [x.numpy() for x in torch.autograd.grad(total, given)]


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled):
    out, gradients = exact()
    call = jax.jit(attend) if compiled else attend
    np.testing.assert_allclose(call(*ARRAYS), out, rtol=0, atol=1e-5)
    derivative = jax.grad(loss, argnums=range(5))
    ours = (jax.jit(derivative) if compiled else derivative)(*ARRAYS)
    for gradient, x, wanted in zip(ours, ARRAYS, gradients, strict=True):
        assert gradient.shape == np.shape(x)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=2e-4)


def test_captures_of_16_bits_and_captures_without_a_gradient():
    def total(table, limit):
        captures = {"table": table, "limit": limit}
        return strobe.jax.attention(
            Q, K, V, score="score + table[head][k]", mask="limit[head] < k", captures=captures
        ).sum()

    table, limit = jax.grad(total, argnums=(0, 1))(jnp.asarray(TABLE, jnp.bfloat16), jnp.zeros(H))
    assert table.dtype == jnp.bfloat16
    assert (limit == 0).all()


def test_vmap_is_a_loop_whose_batches_begin_at_0():
    tables = jnp.stack([TABLE, 2 * TABLE])
    batched = jax.vmap(lambda table: attend(Q, K, V, table, TEMPERATURE))(tables)
    np.testing.assert_array_equal(batched[1], attend(Q, K, V, tables[1], TEMPERATURE))


@pytest.mark.parametrize("compiled", [False, True])
def test_what_masks_hide_no_score_brings_back(compiled):
    ids = np.arange(SK, dtype=np.int32) % 2 + np.zeros((B, 1), np.int32)
    seen = ids[:, :SQ, None] == ids[:, None]

    def attend(q, score, **masks):
        call = functools.partial(strobe.jax.attention, score=score, **masks)
        return (jax.jit(call) if compiled else call)(q, K, V)

    for score in ("2 * tanh(score)", "-score", "score + k"):
        wanted = attend(Q, score, mask="seen[batch][q][k]", captures={"seen": seen})
        np.testing.assert_allclose(attend(Q, score, mask=seen), wanted, rtol=0, atol=2e-6)
        segments = {"q_segment_ids": ids[:, :SQ], "kv_segment_ids": ids}
        np.testing.assert_allclose(attend(Q, score, **segments), wanted, rtol=0, atol=2e-6)


def test_functions_and_arrays_by_the_common_name():
    slope = np.full(H, 0.5, np.float32)
    function = strobe.ScoreFunction("score + slope[head] * (k - q)", "k <= q", {"slope": slope})
    out = strobe.attention(jnp.asarray(Q), jnp.asarray(K), jnp.asarray(V), score=function)
    np.testing.assert_array_equal(out, strobe.attention(Q, K, V, score=function))


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="did you mean `table`"):
        strobe.jax.attention(Q, K, V, score="score + tabel[head][k]", captures={"table": TABLE})
    with pytest.raises(TypeError, match="capture `table` is of type list"):
        strobe.jax.attention(Q, K, V, score="score + table[k]", captures={"table": [1.0]})
    with pytest.raises(NotImplementedError, match="a capture has a tangent"):
        jax.jvp(lambda table: attend(Q, K, V, table, TEMPERATURE), (TABLE,), (TABLE,))
    with pytest.raises(Exception, match="no engine has the JVP of a score"):
        jax.jvp(lambda q: attend(q, K, V, TABLE, TEMPERATURE), (Q,), (Q,))
