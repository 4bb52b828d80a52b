# SPDX-License-Identifier: Apache-2.0
"""strobe.merge: parts of a call give the whole, for every framework that has it."""

import jax.numpy as jnp
import numpy as np
import pytest
import strobe
import strobe.torch
import torch


@pytest.fixture
def qkv():
    generator = np.random.default_rng(3)
    return [generator.standard_normal((2, rows, 4, 32), dtype=np.float32) for rows in (7, 50, 50)]


def halves(q, k, v):
    return [strobe.attention(q, k[:, keys], v[:, keys], return_lse=True) for keys in (slice(0, 19), slice(19, 50))]


def test_halves_give_the_whole(qkv):
    o, lse = strobe.merge(halves(*qkv))
    wanted, wanted_lse = strobe.attention(*qkv, return_lse=True)
    assert o.dtype == lse.dtype == np.float32
    np.testing.assert_allclose(o, wanted, atol=1e-6)
    np.testing.assert_allclose(lse, wanted_lse, atol=1e-6)


def test_torch_tensors_and_outputs(qkv):
    parts = halves(*(torch.from_numpy(x) for x in qkv))
    wanted, wanted_lse = strobe.merge(halves(*qkv))
    out = torch.empty(2, 7, 4, 32, dtype=torch.bfloat16)
    o, lse = strobe.merge(parts, out=out)
    assert o is out
    torch.testing.assert_close(o.float(), torch.from_numpy(wanted), rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(lse, torch.from_numpy(wanted_lse))
    assert strobe.merge(parts, out_dtype=torch.float16)[0].dtype == torch.float16


def test_empty_parts_do_not_count(qkv):
    (o, lse), _ = halves(*qkv)
    empty = (np.full_like(o, np.nan), np.full_like(lse, -np.inf))
    merged, merged_lse = strobe.merge([empty, (o, lse), empty])
    np.testing.assert_allclose(merged, o, rtol=1e-6)
    np.testing.assert_allclose(merged_lse, lse, rtol=1e-6)
    nothing, nothing_lse = strobe.merge([empty, empty])
    assert not nothing.any()
    assert (nothing_lse == -np.inf).all()


def test_gradients_are_those_of_the_whole(qkv):
    """Of each part through its own backward, with the gradients that it has in the merge."""
    q, k, v = (torch.from_numpy(x) for x in qkv)
    generator = torch.Generator().manual_seed(4)
    d_out, d_lse = torch.randn(2, 7, 4, 32, generator=generator), torch.randn(2, 4, 7, generator=generator)

    def gradients(keys, *upstream):
        leaves = [q.clone().requires_grad_(), *(x[:, keys].clone().requires_grad_() for x in (k, v))]
        return torch.autograd.grad(strobe.torch.attention(*leaves, return_lse=True), leaves, upstream)

    wanted = gradients(slice(None), d_out, d_lse)
    runs = (slice(0, 19), slice(19, 50))
    parts = [
        gradients(keys, *x) for keys, x in zip(runs, strobe.merge_backward(halves(q, k, v), d_out, d_lse), strict=True)
    ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], wanted[0], rtol=1e-4, atol=1e-5)
    for i in (1, 2):
        torch.testing.assert_close(torch.cat([parts[0][i], parts[1][i]], 1), wanted[i], rtol=1e-4, atol=1e-5)


def test_gradients_without_those_of_lse(qkv):
    parts = halves(*qkv)
    d_out = np.ones((2, 7, 4, 32), np.float32)
    without, zero = (strobe.merge_backward(parts, d_out, x) for x in (None, np.zeros((2, 4, 7), np.float32)))
    for one, other in zip(without, zero, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    empty = (np.full_like(parts[0][0], np.nan), np.full_like(parts[0][1], -np.inf))
    _, (d_o, d_lse) = strobe.merge_backward([parts[0], empty], d_out)
    assert not d_o.any() and not d_lse.any()
    with pytest.raises(ValueError, match=r"d_o has shape \[2, 7, 4, 31\]"):
        strobe.merge_backward(parts, d_out[..., :31])
    with pytest.raises(NotImplementedError, match="merge_backward does not take arrays of JAX"):
        strobe.merge_backward([tuple(map(jnp.asarray, x)) for x in parts], d_out)


def test_misuse_is_reported(qkv):
    parts = halves(*qkv)
    with pytest.raises(ValueError, match="parts is empty"):
        strobe.merge([])
    for wrong, message in (
        (1, "parts is of type int: it must be a list of pairs (o, lse)"),
        ([1], "parts[0] is of type int: it must be a pair (o, lse)"),
        ([parts[0], (*parts[1], 3)], "parts[1] has 3 values: it must be a pair (o, lse)"),
        (
            [(1, 2)],
            "o of a part is of type int: it must be a tensor that speaks DLPack, of NumPy, PyTorch, JAX or CuPy",
        ),
        ([(parts[0][0], None)], "parts[0].lse is missing: give a tensor [batch, heads_q, seqlen_q]"),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            strobe.merge(wrong)
        assert str(caught.value) == message
    with pytest.raises(ValueError, match=r"parts\[1\]\.o has shape"):
        strobe.merge([parts[0], (parts[1][0][:, :3], parts[1][1])])
    with pytest.raises(ValueError, match="out_dtype is float16, but out is float32"):
        strobe.merge(parts, out=np.empty_like(parts[0][0]), out_dtype="float16")
    with pytest.raises(ValueError, match="requires a gradient"):
        strobe.merge([(torch.zeros(1, 1, 1, 8, requires_grad=True), torch.zeros(1, 1, 1))])
    with pytest.raises(NotImplementedError, match="JAX"):
        strobe.merge([(jnp.zeros((1, 1, 1, 8)), jnp.zeros((1, 1, 1)))])
