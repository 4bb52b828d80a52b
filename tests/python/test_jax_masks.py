# SPDX-License-Identifier: Apache-2.0
"""strobe.jax.attention with masks and segment ids, against float64 and JAX's own attention."""

import jax
import numpy as np
import pytest
import reference
import strobe
import strobe.jax

jnp = jax.numpy
BATCH, SEQLEN_Q, SEQLEN_K, HEADS, HEADS_KV = 3, 20, 33, 4, 2


@pytest.fixture
def qkv():
    generator = np.random.default_rng(8)
    shapes = ((BATCH, SEQLEN_Q, HEADS, 16), (BATCH, SEQLEN_K, HEADS_KV, 16), (BATCH, SEQLEN_K, HEADS_KV, 8))
    return [jnp.asarray(generator.standard_normal(shape, np.float32)) for shape in shapes]


def random_mask(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).random(shape) < 0.6)


def whole(mask):
    """As a bias [batch, heads, seqlen_q, seqlen_k] in float64."""
    mask = np.asarray(mask)
    mask = {2: mask[:, None, None] if mask.ndim == 2 else 0, 3: mask[:, None] if mask.ndim == 3 else 0, 4: mask}[
        mask.ndim
    ]
    added = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
    return np.broadcast_to(added, (BATCH, HEADS, SEQLEN_Q, SEQLEN_K))


SHAPES = [
    (BATCH, SEQLEN_K),
    (1, SEQLEN_K),
    (BATCH, SEQLEN_Q, SEQLEN_K),
    (BATCH, 1, SEQLEN_K),
    (BATCH, SEQLEN_Q, 1),
    (BATCH, HEADS, SEQLEN_Q, SEQLEN_K),
    (BATCH, 1, 1, SEQLEN_K),
    (1, HEADS, 1, SEQLEN_K),
    (1, 1, SEQLEN_Q, 1),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("options", [{}, {"causal": True, "window": (9, -1)}], ids=["", "causal"])
def test_masks(qkv, shape, additive, options):
    mask = random_mask(1, *shape)
    if additive:
        drawn = np.random.default_rng(2).standard_normal(shape, np.float32)
        mask = jnp.where(mask, drawn, -jnp.inf)
    call = jax.jit(lambda mask, *qkv: strobe.jax.attention(*qkv, mask=mask, return_lse=True, **options))
    for result, wanted in zip(call(mask, *qkv), reference.attention(*qkv, bias=whole(mask), **options), strict=False):
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5)


def plain_attention(q, k, v, bias):
    """In float64, by einsum."""
    k, v = (jnp.repeat(x, HEADS // HEADS_KV, axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4 + bias
    shifted = scores - jax.lax.stop_gradient(jnp.max(scores, -1, keepdims=True))
    p = jnp.exp(shifted)
    return jnp.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(qkv, shape):
    """Of q, k, v and an additive mask, through a bool mask and a bias beside it."""
    visible = random_mask(3, *shape).at[..., 0].set(True)  # every row sees a key
    drawn = jnp.asarray(np.random.default_rng(4).standard_normal((1, HEADS, SEQLEN_Q, SEQLEN_K), np.float32))
    d_o = jnp.asarray(np.random.default_rng(5).standard_normal((BATCH, SEQLEN_Q, HEADS, 8), np.float32))

    def loss(q, k, v, bias, added):
        o = strobe.jax.attention(q, k, v, bias=bias, mask=jnp.where(visible, added, -jnp.inf))
        return (o * d_o).sum()

    def wanted_loss(q, k, v, bias, added):
        axes = {2: (1, 2), 3: (1,), 4: ()}[len(shape)]
        mask = jnp.expand_dims(jnp.where(visible, added, -jnp.inf), axes)
        return (plain_attention(q, k, v, jnp.where(mask == -jnp.inf, -jnp.inf, bias + mask)) * d_o).sum()

    arguments = (*qkv, drawn, jnp.asarray(np.random.default_rng(6).standard_normal(shape, np.float32)))
    gradients = jax.jit(jax.grad(loss, argnums=range(5)))(*arguments)
    with jax.enable_x64(True):
        arguments = [jnp.asarray(np.asarray(x), jnp.float64) for x in arguments]
        wanted = jax.grad(wanted_loss, argnums=range(5))(*arguments)
    for gradient, expected in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hidden_keys_hold_anything(qkv, dtype):
    """NaN behind a mask reaches no result and no gradient."""
    q, k, v = (x.astype(dtype) for x in qkv)
    visible = random_mask(7, BATCH, HEADS, 1, SEQLEN_K).at[:, :2, :, 5].set(False)  # of the first head of keys
    visible = visible & random_mask(8, BATCH, HEADS, SEQLEN_Q, SEQLEN_K).at[:, :2, :, 9].set(False)
    hidden = ~np.asarray(visible).reshape(BATCH, HEADS_KV, -1, SEQLEN_K).any(2).transpose(0, 2, 1)[..., None]
    assert hidden[:, [5, 9], 0].all()

    def gradients(k, v):
        def loss(q, k, v):
            return strobe.jax.attention(q, k, v, mask=visible).astype(jnp.float32).sum()

        return jax.value_and_grad(loss, argnums=(0, 1, 2))(q, k, v)

    clean = gradients(jnp.where(hidden, 0, k), jnp.where(hidden, 0, v))
    dirty = gradients(jnp.where(hidden, jnp.nan, k), jnp.where(hidden, jnp.inf, v))
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)
    assert all((np.asarray(x)[np.broadcast_to(hidden, x.shape)] == 0).all() for x in dirty[1][1:])


def test_two_masks_hide_a_key_together(qkv):
    """A key that the mask hides from one query and segments from the other."""
    q, k, v = (x[:1] for x in qkv)
    q = q[:, :2]
    segments = jnp.asarray([[0, 1]], jnp.int32), jnp.zeros((1, SEQLEN_K), jnp.int32).at[0, 4].set(1)
    mask = jnp.ones((1, 2, SEQLEN_K), bool).at[0, 1, 4].set(False)
    o = strobe.jax.attention(
        *(q, k.at[0, 4].set(jnp.nan), v), mask=mask, q_segment_ids=segments[0], kv_segment_ids=segments[1]
    )
    assert np.isfinite(o).all()
    assert (np.asarray(o[0, 1]) == 0).all()  # of a query without keys


def test_all_hidden(qkv):
    o, lse = strobe.jax.attention(*qkv, mask=jnp.zeros((1, 1), bool), return_lse=True)
    assert (np.asarray(o) == 0).all()
    assert (np.asarray(lse) == -np.inf).all()
    empty = strobe.jax.attention(qkv[0], *(x[:, :0] for x in qkv[1:]), mask=jnp.ones((BATCH, 0), bool))
    assert (np.asarray(empty) == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_segments(qkv, causal):
    """Each segment has what it has alone, as a packed sequence."""
    x = qkv[0]
    ids = jnp.asarray(np.repeat([[3, 3, 0, 7], [1, 1, 1, 1], [2, 5, 5, 2]], SEQLEN_Q // 4, axis=1), jnp.int32)
    call = jax.jit(lambda x: strobe.jax.attention(x, x, x, causal=causal, q_segment_ids=ids, kv_segment_ids=ids))
    equal = np.asarray(ids)[:, None, :, None] == np.asarray(ids)[:, None, None, :]
    wanted, _, _ = reference.attention(x, x, x, causal=causal, bias=np.where(equal, 0.0, -np.inf))
    np.testing.assert_allclose(call(x), wanted, rtol=2e-5, atol=2e-5)
    packed = strobe.jax.attention(
        *[x[0]] * 3,
        causal=causal,
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), jnp.asarray([0, 10, 15, 20], jnp.int32)),
    )
    np.testing.assert_allclose(call(x)[0], packed, rtol=2e-5, atol=2e-5)


def test_as_jax(qkv):
    """jax.nn.dot_product_attention takes the same masks of four axes."""
    mask = random_mask(9, BATCH, 1, 1, SEQLEN_K).at[..., 0].set(True)
    q, k, v = qkv[0], qkv[1], qkv[1]
    wanted = jax.nn.dot_product_attention(q, k, v, mask=mask)
    np.testing.assert_allclose(strobe.jax.attention(q, k, v, mask=mask), wanted, rtol=1e-5, atol=1e-5)


def test_a_mask_of_keys_takes_no_memory_for_queries():
    """A program with a mask [batch, seqlen_k] has no array of an element for each query and key."""
    x = jnp.zeros((2, 4096, 1, 16), jnp.bfloat16)
    gradient = jax.grad(lambda x, mask: strobe.jax.attention(x, x, x, mask=mask).astype("float32").sum())
    text = jax.jit(gradient).lower(x, jnp.ones((2, 4096), bool)).compile().as_text()
    assert "strobe_backward" in text
    assert "4096,4096" not in text


def test_rejections(qkv):
    def check(error, message, *, tensors=qkv, **options):
        for call in (strobe.jax.attention, jax.jit(strobe.jax.attention)):
            with pytest.raises(error) as caught:
                call(*tensors, **options)
            assert str(caught.value).startswith(message)

    ids = jnp.zeros((BATCH, SEQLEN_Q), jnp.int32)
    check(TypeError, "mask is int32: it must be bool", mask=jnp.ones((BATCH, SEQLEN_K), jnp.int32))
    check(ValueError, "mask has shape [33]: it must be [batch, seqlen_k]", mask=jnp.ones(SEQLEN_K, bool))
    check(
        ValueError, "mask has shape [20, 33]: it must be [batch, seqlen_k]", mask=jnp.ones((SEQLEN_Q, SEQLEN_K), bool)
    )
    check(ValueError, "q_segment_ids is given without kv_segment_ids: give both", q_segment_ids=ids)
    check(
        TypeError, "kv_segment_ids is float32: it must be int32", q_segment_ids=ids, kv_segment_ids=jnp.zeros((3, 33))
    )
    check(
        *(ValueError, "kv_segment_ids has shape [3, 20]: it must be [batch, seqlen], [3, 33]"),
        **{"q_segment_ids": ids, "kv_segment_ids": ids},
    )
    lengths = jnp.asarray([0, SEQLEN_Q], jnp.int32)
    packed = {"tensors": [qkv[0][0]] * 3, "cu_seqlens_q": lengths, "cu_seqlens_k": lengths}
    check(ValueError, "mask is given with packed sequences", mask=jnp.ones((1, SEQLEN_Q), bool), **packed)
    for name, ours in {
        "query_seq_lengths": "seqused_q",
        "key_value_seq_lengths": "seqused_k",
        "local_window_size": "window",
        "is_causal": "causal",
    }.items():
        check(TypeError, f"{name} is no option of strobe.jax.attention: give {ours}", **{name: jnp.ones(3, jnp.int32)})
