# SPDX-License-Identifier: Apache-2.0
"""Caches in pages, with left padding, and in entries that an index chooses: the bits of contiguous keys."""

import numpy as np
import pytest
import strobe
import torch

PAGE_SIZE = 5
LENGTHS = np.array([23, 8], np.int32)


@pytest.fixture
def keys():
    rng = np.random.default_rng(7)
    q = rng.standard_normal((2, 100, 4, 16), np.float32)
    k, v = (rng.standard_normal((2, 25, 2, 16), np.float32) for _ in range(2))
    return q, k, v


def pages_of(x, table):
    """A pool in which all that holds no key is NaN."""
    pool = np.full((12, PAGE_SIZE, *x.shape[2:]), np.nan, x.dtype)
    for b, length in enumerate(LENGTHS):
        for row in range(length):
            pool[table[b, row // PAGE_SIZE], row % PAGE_SIZE] = x[b, row]
    return pool


def wanted(q, k, v):
    return strobe.attention(q, k, v, causal=True, seqused_k=LENGTHS, return_lse=True)


@pytest.mark.parametrize("framework", [np.asarray, torch.from_numpy])
def test_pages(keys, framework):
    q, k, v = keys
    table = np.array([[7, 0, 11, 2, 9], [1, 4, -1, 99, -7]], np.int32)
    call = [framework(x) for x in (q, pages_of(k, table), pages_of(v, table))]
    options = {"seqused_k": framework(LENGTHS), "page_table": framework(table), "causal": True}
    out, lse = strobe.attention(*call, **options, return_lse=True)
    for result, expected in zip((out, lse), wanted(q, k, v), strict=True):
        np.testing.assert_array_equal(np.asarray(result), expected)
    assert "pages         of 5 rows" in strobe.explain(*call, **options)


def test_heads_before_rows(keys):
    q, k, v = keys
    table = np.arange(10, dtype=np.int32).reshape(2, 5)
    pools = [np.ascontiguousarray(pages_of(x, table).swapaxes(1, 2)).swapaxes(1, 2) for x in (k, v)]
    out = strobe.attention(q, *pools, causal=True, seqused_k=LENGTHS, page_table=table)
    np.testing.assert_array_equal(out, wanted(q, k, v)[0])


def test_left_padding_and_entries(keys):
    q, k, v = keys
    padding = np.array([2, 17], np.int32)
    entries = np.array([3, 0], np.int32)
    caches = [np.full((4, 25, 2, 16), np.nan, np.float32) for _ in range(2)]
    for cache, x in zip(caches, (k, v), strict=True):
        for b, length in enumerate(LENGTHS):
            cache[entries[b], padding[b] : padding[b] + length] = x[b, :length]
    out = strobe.attention(
        q, *caches, causal=True, seqused_k=padding + LENGTHS, leftpad_k=padding, cache_batch_idx=entries
    )
    np.testing.assert_array_equal(out, wanted(q, k, v)[0])


def test_there_is_no_backward(keys):
    q, k, v = keys
    out, lse = strobe.attention(q, k, v, return_lse=True)
    for options in ({"page_table": np.zeros((2, 1), np.int32)}, {"leftpad_k": np.zeros(2, np.int32)}):
        message = f"{next(iter(options))} is given: no engine has the backward of a key-value cache"
        with pytest.raises(NotImplementedError, match=message):
            strobe.attention_backward(out, q, k, v, out, lse, **options)
