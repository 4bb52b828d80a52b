# SPDX-License-Identifier: Apache-2.0
"""strobe.merge: parts of a call give the whole, for every framework that has it."""

import jax.numpy as jnp
import numpy as np
import pytest
import strobe
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
