# SPDX-License-Identifier: Apache-2.0
"""Other libraries' calls: what docs/migrating.md says to call here has their results."""

import numpy as np
import pytest
import strobe

torch = pytest.importorskip("torch")
import strobe.torch  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

TOLERANCE = 1e-5  # of float32 outputs near 1


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    lengths = (20, 30, 30)  # more keys than queries, where the two alignments of a causal mask differ
    return [torch.randn(2, length, 4, 16, generator=generator) for length in lengths]


def of_pytorch(q, k, v, **options):
    return scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), **options).transpose(1, 2)


def test_scaled_dot_product_attention(tensors):
    bias = torch.randn(2, 4, 20, 30, generator=torch.Generator().manual_seed(1))
    pairs = (
        (of_pytorch(*tensors, is_causal=True), strobe.torch.attention(*tensors, causal="top_left")),
        (of_pytorch(*tensors, attn_mask=bias), strobe.torch.attention(*tensors, bias=bias)),
    )
    for theirs, ours in pairs:
        assert (theirs - ours).abs().max() < TOLERANCE
    assert (pairs[0][0] - strobe.torch.attention(*tensors, causal=True)).abs().max() > 0.1


def test_flash_attention(tensors):
    q, k, v = tensors
    query, key = torch.arange(20)[:, None] + 10, torch.arange(30)
    seen = (key <= query) & (key >= query - 5)  # flash-attn's causal=True, window_size=(5, 0)
    theirs = of_pytorch(q, k, v, attn_mask=seen, scale=0.3)
    assert (theirs - strobe.torch.attention(q, k, v, causal=True, window=(5, 0), scale=0.3)).abs().max() < TOLERANCE


def test_variable_lengths(tensors):
    q, k, v = (x[0] for x in tensors)
    ends_q, ends_k = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 8, 20], [0, 11, 30]))
    lengths = {"cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k, "max_seqlen_q": 12, "max_seqlen_k": 19}
    o = strobe.torch.attention(q, k, v, **lengths)
    for rows, keys in ((slice(0, 8), slice(0, 11)), (slice(8, 20), slice(11, 30))):
        alone = of_pytorch(q[None, rows], k[None, keys], v[None, keys])[0]
        assert (o[rows] - alone).abs().max() < TOLERANCE


def test_jax(tensors):
    jax = pytest.importorskip("jax")
    import strobe.jax

    arrays = [jax.numpy.asarray(x.numpy()) for x in tensors]
    theirs = jax.nn.dot_product_attention(*arrays, is_causal=True)
    assert np.abs(theirs - strobe.jax.attention(*arrays, causal="top_left")).max() < TOLERANCE
