# SPDX-License-Identifier: Apache-2.0
"""Tree masks: drafts of speculative decoding against plain calls on their branches."""

import numpy as np
import pytest
import strobe
import torch

PARENTS = [-1, 0, 0, 2, 1, 3, -1]


def branch_of(draft):
    return [] if draft < 0 else [*branch_of(PARENTS[draft]), draft]


WORDS = np.array([sum(1 << draft for draft in branch_of(i)) for i in range(len(PARENTS))], np.int64)
DRAFTS = len(PARENTS)


@pytest.fixture
def tensors():
    rng = np.random.default_rng(5)
    q = rng.standard_normal((2, DRAFTS, 4, 32), np.float32)
    k, v = (rng.standard_normal((2, 40 + DRAFTS, 2, 32), np.float32) for _ in range(2))
    return q, k, v


def expect_branches(out, q, k, v, cached):
    """Each draft has the result of a causal call on the cache and its branch."""
    for draft in range(DRAFTS):
        branch = branch_of(draft)
        keys = [*range(cached), *(cached + i for i in branch)]
        plain = strobe.attention(q[None, branch], k[None, keys], v[None, keys], causal=True)
        np.testing.assert_allclose(np.asarray(out)[draft], np.asarray(plain)[0, -1], atol=2e-6)


@pytest.mark.parametrize("framework", [np.asarray, torch.from_numpy])
def test_branches(tensors, framework):
    q, k, v = tensors
    words = np.stack([WORDS, WORDS])
    out = strobe.attention(*(framework(x) for x in tensors), tree_mask=framework(words))
    for b in range(2):
        expect_branches(out[b], q[b], k[b], v[b], 40)
    assert "tree mask" in strobe.explain(*tensors, tree_mask=words)


def test_packed_queries_over_pages(tensors):
    q, k, v = tensors
    table = np.array([[3, 0, 5, 1], [2, 4, 6, -1]], np.int32)
    pools = [np.full((7, 16, 2, 32), np.nan, np.float32) for _ in range(2)]
    used = np.array([47, 30 + DRAFTS], np.int32)
    for pool, x in zip(pools, (k, v), strict=True):
        for b in range(2):
            for row in range(used[b]):
                pool[table[b, row // 16], row % 16] = x[b, row]
    out = strobe.attention(
        q.reshape(-1, 4, 32),
        *pools,
        cu_seqlens_q=np.array([0, DRAFTS, 2 * DRAFTS], np.int32),
        max_seqlen_q=DRAFTS,
        seqused_k=used,
        page_table=table,
        tree_mask=np.tile(WORDS, 2),
    )
    for b in range(2):
        expect_branches(out[b * DRAFTS : (b + 1) * DRAFTS], q[b], k[b], v[b], used[b] - DRAFTS)


def test_errors(tensors):
    words = np.stack([WORDS, WORDS])
    with pytest.raises(ValueError, match="tree_mask is int32: it must be int64"):
        strobe.attention(*tensors, tree_mask=words.astype(np.int32))
    with pytest.raises(ValueError, match=r"tree_mask has shape \[1, 7\]: it must be \[2, 7\]"):
        strobe.attention(*tensors, tree_mask=words[:1])
    long = np.zeros((1, 65, 1, 8), np.float32)
    with pytest.raises(ValueError, match="tree_mask is given with seqlen_q of 65"):
        strobe.attention(long, long, long, tree_mask=np.zeros((1, 65), np.int64))
    with pytest.raises(NotImplementedError, match="tree_mask is given with block_mask: no engine combines the two"):
        strobe.attention(*tensors, tree_mask=words, block_mask=np.ones((1, 1, 1, 1), np.uint8))
    out, lse = strobe.attention(*tensors, return_lse=True)
    with pytest.raises(NotImplementedError, match="tree_mask is given: no engine has the backward of tree masks"):
        strobe.attention_backward(out, *tensors, out, lse, tree_mask=words)
