# SPDX-License-Identifier: Apache-2.0
"""Calls on parts of sequences: parts merged, and the sums of their gradients, are the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import strobe
import strobe.jax
import strobe.torch
import torch

BATCH, ROWS, CUT = 2, 90, 35
OPTIONS = {
    "causal": {"causal": True},
    "window": {"causal": True, "window": (20, -1), "alibi_slopes": np.float32([0.5, 0.25, 0.0, 0.1])},
    "chunk": {"causal": "top_left", "chunk": 24, "softcap": 3.0},
    "dropout": {"dropout": 0.3, "seed": 5, "window": (30, 10)},
}


@pytest.fixture
def tensors():
    rng = np.random.default_rng(3)
    q = rng.standard_normal((BATCH, ROWS, 4, 32), np.float32)
    k, v = (rng.standard_normal((BATCH, ROWS, 2, 32), np.float32) for _ in range(2))
    return q, k, v, rng.standard_normal(q.shape, np.float32)


def at(first):
    return np.full(BATCH, first, np.int32)


def parts():
    """Queries and keys of each part, and its options."""
    for first, last in ((0, CUT), (CUT, ROWS)):
        for key, end in ((0, CUT + 2), (CUT + 2, ROWS)):
            yield slice(first, last), slice(key, end), {"offset_q": at(first), "offset_k": at(key)}


@pytest.mark.parametrize("name", OPTIONS)
def test_parts_make_the_whole(tensors, name):
    q, k, v, d_o = tensors
    options = OPTIONS[name]
    out, lse = strobe.attention(q, k, v, return_lse=True, **options)
    results = {}
    for rows, keys, offsets in parts():
        part = strobe.attention(q[:, rows], k[:, keys], v[:, keys], return_lse=True, **offsets, **options)
        results.setdefault(rows.start, []).append(part)
    for rows, merged in ((slice(0, CUT), results[0]), (slice(CUT, ROWS), results[CUT])):
        o, of_rows = strobe.merge(merged)
        np.testing.assert_allclose(o, out[:, rows], atol=1e-5)
        np.testing.assert_allclose(of_rows, lse[:, :, rows], atol=1e-5)

    whole = strobe.attention_backward(d_o, q, k, v, out, lse, **options)
    sums = [np.zeros_like(x) for x in whole]
    for rows, keys, offsets in parts():
        inputs = (d_o[:, rows], q[:, rows], k[:, keys], v[:, keys], out[:, rows].copy(), lse[:, :, rows].copy())
        dq, dk, dv = strobe.attention_backward(*inputs, **offsets, **options)
        for total, gradient, place in zip(sums, (dq, dk, dv), (rows, keys, keys), strict=True):
            total[:, place] += gradient
    for total, gradient in zip(sums, whole, strict=True):
        np.testing.assert_allclose(total, gradient, atol=3e-5)


@pytest.mark.parametrize("name", OPTIONS)
def test_queries_with_all_keys_on_the_tape(tensors, name):
    q, k, v, d_o = (torch.from_numpy(x) for x in tensors)
    options = {x: torch.from_numpy(y) if isinstance(y, np.ndarray) else y for x, y in OPTIONS[name].items()}
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    strobe.torch.attention(*whole, **options).backward(d_o)
    k, v = (x.clone().requires_grad_() for x in (k, v))
    for first, last in ((0, CUT), (CUT, ROWS)):
        part = q[:, first:last].clone().requires_grad_()
        offsets = {"offset_q": torch.from_numpy(at(first)), "offset_k": torch.from_numpy(at(0))}
        out = strobe.torch.attention(part, k, v, **offsets, **options)
        out.backward(d_o[:, first:last])
        torch.testing.assert_close(part.grad, whole[0].grad[:, first:last], atol=3e-5, rtol=1e-4)
    for x, y in ((k, whole[1]), (v, whole[2])):
        torch.testing.assert_close(x.grad, y.grad, atol=3e-5, rtol=1e-4)


def test_jax(tensors):
    q, k, v, d_o = (jnp.asarray(x) for x in tensors)

    def loss(q, k, v, d_o, **offsets):
        return (strobe.jax.attention(q, k, v, causal=True, **offsets) * d_o).sum()

    whole = jax.grad(loss, (0, 1, 2))(q, k, v, d_o)
    of_parts = [
        jax.jit(jax.grad(loss, (0, 1, 2)))(q[:, rows], k, v, d_o[:, rows], offset_q=jnp.asarray(at(rows.start)))
        for rows in (slice(0, CUT), slice(CUT, ROWS))
    ]
    np.testing.assert_allclose(jnp.concatenate([part[0] for part in of_parts], 1), whole[0], atol=3e-5)
    for i in (1, 2):
        np.testing.assert_allclose(of_parts[0][i] + of_parts[1][i], whole[i], atol=3e-5)


def test_queries_before_all_keys(tensors):
    q, k, v, _ = tensors
    out, lse = strobe.attention(q, k, v, causal=True, offset_k=at(ROWS), return_lse=True)
    assert (out == 0).all()
    assert (lse == -np.inf).all()


def test_explain_and_errors(tensors):
    q, k, v, _ = tensors
    assert "by offsets" in strobe.explain(q, k, v, offset_q=at(3))
    with pytest.raises(ValueError, match=r"offset_k\[1\] is -2: it must be 0 or more"):
        strobe.attention(q, k, v, offset_k=np.array([0, -2], np.int32))
    with pytest.raises(ValueError, match="offset_q is given with log_length"):
        strobe.attention(q, k, v, offset_q=at(0), log_length=64)
