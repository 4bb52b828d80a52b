# SPDX-License-Identifier: Apache-2.0
"""strobe.sparse_attention and strobe.RowFormat on NumPy's arrays, against float64 and strobe.attention."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
import strobe
import test_tour


def softmax_over(q, k, v, listed, sink=None):
    """o and lse of q [heads, d] over the listed rows of k and v, in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k[listed], v[listed]))
    scores = q @ k.T / np.sqrt(q.shape[-1])
    if sink is not None:
        scores = np.concatenate([scores, sink[:, None].astype(np.float64)], axis=1)
        v = np.concatenate([v, np.zeros_like(v[:1])])
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=1, keepdims=True)
    return weights / total @ v, (top + np.log(total))[:, 0]


@pytest.fixture
def call():
    rng = np.random.default_rng(3)
    q = rng.standard_normal((2, 3, 8, 64), dtype=np.float32)
    k = rng.standard_normal((2, 50, 1, 64), dtype=np.float32)
    v = rng.standard_normal((2, 50, 1, 40), dtype=np.float32)
    indices = np.stack([rng.permutation(50)[:12] for _ in range(6)]).reshape(2, 3, 1, 12).astype(np.int32)
    return q, k, v, indices


def test_lists_are_attention_over_the_listed_keys(call):
    q, k, v, indices = call
    indices[0, 1, 0, 4:] = -1
    sink = np.linspace(-1, 1, 8, dtype=np.float32)
    out, lse = strobe.sparse_attention(q, k, v, indices, sink=sink, return_lse=True)
    for b in range(2):
        for i in range(3):
            listed = indices[b, i, 0][indices[b, i, 0] >= 0]
            o, row_lse = softmax_over(q[b, i], k[b, :, 0], v[b, :, 0], listed, sink)
            np.testing.assert_allclose(out[b, i], o, atol=2e-6)
            np.testing.assert_allclose(lse[b, :, i], row_lse, atol=2e-6)


def test_all_keys_are_ordinary_attention(call):
    q, k, v, _ = call
    indices = np.broadcast_to(np.arange(50, dtype=np.int32), (2, 3, 1, 50)).copy()
    out = strobe.sparse_attention(q, k, v, indices, causal=True)
    np.testing.assert_allclose(out, strobe.attention(q, k, v, causal=True), atol=2e-6)


def test_top_k_of_an_indexer(call):
    q, k, v, _ = call
    rng = np.random.default_rng(4)
    index_q, index_k = rng.standard_normal((2, 3, 16)), rng.standard_normal((2, 50, 16))
    scores = np.maximum(index_q @ index_k.transpose(0, 2, 1), 0)
    scores[:, np.arange(3)[:, None] + 47 < np.arange(50)] = -np.inf  # causal: the last query sees every key
    chosen = np.argsort(-scores, axis=-1)[..., :10].astype(np.int32)
    out = strobe.sparse_attention(q, k, v, chosen[:, :, None])
    mask = np.full((2, 1, 3, 50), -np.inf, dtype=np.float32)
    np.put_along_axis(mask[:, 0], chosen, 0, axis=-1)
    np.testing.assert_allclose(out, strobe.attention(q, k, v, bias=mask), atol=2e-6)


def test_lengths_blocks_and_a_second_source(call):
    q, k, v, indices = call
    lengths = np.array([[12, 0, 3], [1, 5, 12]], dtype=np.int32)
    blocks = np.array([[[[1]], [[0]], [[2]]], [[[0]], [[-1]], [[3]]]], dtype=np.int32)
    extra = strobe.SparseSource(k=k[:, ::-1].copy(), v=v[:, ::-1].copy(), indices=blocks, block_size=16)
    out = strobe.sparse_attention(q, k, v, indices, topk_length=lengths, extra=extra)
    for b in range(2):
        for i in range(3):
            first = indices[b, i, 0, : lengths[b, i]]
            block = blocks[b, i, 0, 0]
            second = 49 - np.arange(16 * block, min(16 * block + 16, 50)) if block >= 0 else np.array([], dtype=int)
            listed = np.concatenate([first, second]).astype(int)
            np.testing.assert_allclose(out[b, i], softmax_over(q[b, i], k[b, :, 0], v[b, :, 0], listed)[0], atol=2e-6)


@pytest.mark.parametrize(
    "make", [strobe.RowFormat.deepseek_v32, strobe.RowFormat.deepseek_v4, strobe.RowFormat.deepseek_v41]
)
def test_caches_of_deepseek(make):
    form = make()
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((4, 16, 1, form.columns), dtype=np.float32)
    cache = np.zeros((4, 16, 1, form.row_bytes), dtype=np.uint8)
    form.encode(rows, cache)
    stored = np.empty_like(rows)
    form.decode(cache, stored)
    assert 0 < np.abs(stored - rows).max() < 0.2
    q = rng.standard_normal((2, 1, 16, form.columns), dtype=np.float32)
    indices = rng.integers(0, 64, (2, 1, 1, 40), dtype=np.int32)
    out = strobe.sparse_attention(q, cache, None, indices, k_format=form, in_pool=True)
    assert out.shape == (2, 1, 16, form.head_dim_v)
    flat = stored.reshape(64, form.columns)
    for b in range(2):
        o, _ = softmax_over(q[b, 0], flat, flat[:, : form.head_dim_v], indices[b, 0, 0])
        np.testing.assert_allclose(out[b, 0], o, atol=4e-6)


def test_pages_and_packed_queries(call):
    q, k, v, _ = call
    pages = k.reshape(20, 5, 1, 64).astype(ml_dtypes.bfloat16)
    values = v.reshape(20, 5, 1, 40).astype(ml_dtypes.bfloat16)
    table = np.arange(19, -1, -1, dtype=np.int32).reshape(2, 10)
    packed = q.reshape(6, 8, 64)[:5]
    cu_seqlens = np.array([0, 2, 5], dtype=np.int32)
    indices = np.tile(np.arange(0, 50, 7, dtype=np.int32), (5, 1, 1))
    out = strobe.sparse_attention(packed, pages, values, indices, cu_seqlens_q=cu_seqlens, page_table=table)
    for row in range(5):
        order = table[int(row >= 2)]
        keys = pages[order].reshape(50, 64).astype(np.float32), values[order].reshape(50, 40).astype(np.float32)
        np.testing.assert_allclose(out[row], softmax_over(packed[row], *keys, indices[row, 0])[0], atol=3e-6)


def test_a_format_is_a_value():
    form = strobe.RowFormat.deepseek_v4()
    assert form == strobe.RowFormat.deepseek_v4()
    assert (form.columns, form.row_bytes, form.tail_bytes, form.head_dim_v) == (512, 584, 8, 512)
    assert str(form).startswith("512 columns in 584 bytes: 448 float8_e4m3 at 0")
    assert strobe.RowFormat.mla_bfloat16().row_bytes == 1152
    assert strobe.RowFormat.deepseek_v41().row_bytes == 528
    assert strobe.RowFormat.deepseek_v41_four_bit().row_bytes == 288
    assert strobe.RowFormat.eight_bit("int8", 128).row_bytes == 132
    with pytest.raises(ValueError, match="tail_bytes is 600: it must be 0 or more and less than row_bytes"):
        dataclasses.replace(form, tail_bytes=600)
    with pytest.raises(ValueError, match='element is "float9": it must be float32, bfloat16'):
        strobe.RowFormat((strobe.RowPart("float9", 8),), row_bytes=8)
    with pytest.raises(TypeError, match="columns is of type str: it must be an integer"):
        strobe.RowFormat((strobe.RowPart("float16", "8"),), row_bytes=16)


def test_four_bits():
    form = strobe.RowFormat(
        parts=(
            strobe.RowPart("float4_e2m1", 448, 0, scale="float8_e8m0", scale_columns=32, scale_offset=224),
            strobe.RowPart("bfloat16", 64, 238),
        ),
        row_bytes=368,
        head_dim_v=512,
        alignment=16,
    )
    rows = np.tile(np.array([0, 0.5, -1, 1.5, 2, -3, 4, 6], dtype=np.float32), 64).reshape(1, 1, 1, 512)
    cache = np.empty((1, 1, 1, 368), dtype=np.uint8)
    form.encode(rows, cache)
    stored = np.empty_like(rows)
    form.decode(cache, stored)
    np.testing.assert_array_equal(stored, rows)


def test_a_format_of_ones_own_is_attended_over():
    """Rows that no model has: int4 and float8 with scales of three kinds, and float16; V is the first 96 columns."""
    form = strobe.RowFormat(
        parts=(
            strobe.RowPart("int4", 64, 0, scale="bfloat16", scale_columns=16, scale_offset=96),
            strobe.RowPart("float8_e4m3", 32, 32, scale="float8_e4m3", scale_columns=8, scale_offset=104),
            strobe.RowPart("float16", 16, 64),
        ),
        row_bytes=112,
        head_dim_v=96,
        alignment=16,
    )
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((3, 10, 2, 112), dtype=np.float32)
    cache = np.zeros((3, 10, 2, form.row_bytes), dtype=np.uint8)
    form.append(cache, rows, np.zeros(3, dtype=np.int32))
    stored = np.empty_like(rows)
    form.decode(cache, stored)
    assert 0 < np.abs(stored - rows).max() < 0.5
    np.testing.assert_array_equal(stored[..., 96:], rows[..., 96:].astype(np.float16).astype(np.float32))
    q = rng.standard_normal((3, 2, 4, 112), dtype=np.float32)
    indices = rng.integers(0, 10, (3, 2, 1, 7), dtype=np.int32)
    out = strobe.sparse_attention(q, cache, None, indices, k_format=form)
    for b in range(3):
        for i in range(2):
            for head in range(2):
                k = stored[b, :, head]
                o, _ = softmax_over(q[b, i, 2 * head : 2 * head + 2], k, k[:, :96], indices[b, i, 0])
                np.testing.assert_allclose(out[b, i, 2 * head : 2 * head + 2], o, atol=4e-6)


def test_lists_of_all_blocks_are_dense_latent_attention():
    """A dense decode over pages in a format names every block of 64 keys; lengths and the causal mask say the rest."""
    form = strobe.RowFormat.deepseek_v32()
    rng = np.random.default_rng(9)
    pages = np.zeros((6, 64, 1, form.row_bytes), dtype=np.uint8)
    form.encode(rng.standard_normal((6, 64, 1, 576), dtype=np.float32), pages)
    stored = np.empty((6, 64, 1, 576), dtype=np.float32)
    form.decode(pages, stored)
    table = np.array([[3, 0, 5], [1, 4, 2]], dtype=np.int32)
    used = np.array([130, 192], dtype=np.int32)
    q = rng.standard_normal((2, 2, 16, 576), dtype=np.float32)
    blocks = np.tile(np.arange(3, dtype=np.int32), (2, 2, 1, 1))
    out = strobe.sparse_attention(
        q, pages, None, blocks, k_format=form, block_size=64, page_table=table, seqused_k=used, causal=True, scale=0.05
    )
    dense = strobe.mla(
        q[..., :512], q[..., 512:], stored[:, :, 0], scale=0.05, causal=True, page_table=table, seqused_k=used
    )
    np.testing.assert_allclose(out, dense, atol=4e-6)


def test_threads_change_no_bit(call):
    q, k, v, indices = call
    outs = [strobe.sparse_attention(q, k, v, indices, threads=threads) for threads in (1, 2, 5)]
    assert all(np.array_equal(outs[0], out) for out in outs)


def test_what_is_wrong_is_said(call):
    q, k, v, indices = call
    out = np.full((2, 3, 8, 40), 7, dtype=np.float32)
    indices[1, 2, 0, 3] = 50
    with pytest.raises(ValueError, match=r"sources\[0\].indices names 50 at place 3 of query 2, head 0 of sequence 1"):
        strobe.sparse_attention(q, k, v, indices, out=out)
    assert (out == 7).all()
    with pytest.raises(ValueError, match="block_size is 8: it must be 1, 16, 32, 64 or 128"):
        strobe.sparse_attention(q, k, v, indices, block_size=8)
    with pytest.raises(TypeError, match="causal is of type str"):
        strobe.sparse_attention(q, k, v, indices, causal="yes")
    with pytest.raises(ValueError, match="indices is int64: it must be int32"):
        strobe.sparse_attention(q, k, v, indices.astype(np.int64))
    with pytest.raises(ValueError, match=r"sources\[0\].indices is missing"):
        strobe.sparse_attention(q, k, v, None)


def test_rows_are_appended_in_pages():
    form = strobe.RowFormat.deepseek_v4()
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((5, 1, form.columns), dtype=np.float32)
    cache = np.full((4, 2, 1, form.row_bytes), 0xA5, dtype=np.uint8)
    table = np.array([[3, 0], [1, 2]], dtype=np.int32)
    form.append(
        cache, rows, np.array([1, 0], dtype=np.int32),
        cu_seqlens_new=np.array([0, 2, 5], dtype=np.int32), page_table=table,
    )  # fmt: skip
    stored, expected = (
        np.empty((4, 2, 1, form.columns), dtype=np.float32),
        np.empty((1, 5, 1, form.columns), np.float32),
    )
    form.decode(cache, stored)
    whole = np.empty((1, 5, 1, form.row_bytes), dtype=np.uint8)
    form.encode(rows[None], whole)
    form.decode(whole, expected)
    for row, place in enumerate([(3, 1), (0, 0), (1, 0), (1, 1), (2, 0)]):
        np.testing.assert_array_equal(stored[place], expected[0, row])
    assert (cache[3].reshape(-1)[:576] == 0xA5).all()  # the row that sequence 0 had
    with pytest.raises(ValueError, match="sequence 0 has 4 rows and appends 2: its part of the cache has 4"):
        form.append(cache, rows[:4].reshape(2, 2, 1, -1), np.array([4, 0], dtype=np.int32), page_table=table)


def test_the_page_runs():
    test_tour.run(test_tour.ROOT / "docs" / "sparse.md")


def test_is_explained(call):
    q, k, v, indices = call
    text = strobe.explain_sparse_attention(q, k, v, indices, return_lse=True)
    assert text.startswith("engine        cpu: the tensors are in host memory\n")
    assert "tasks         6 queries by 1 key heads\n" in text
    assert "source 0      rows float32 of K and float32 of V, converted to float32 as they are read\n" in text
    with pytest.raises(ValueError, match=r"sources\[0\].k has 64 columns and q has 32"):
        strobe.explain_sparse_attention(q[..., :32].copy(), k, v, indices)
    with pytest.raises(TypeError):
        strobe.explain_sparse_attention(q, k, v, indices, windows=3)
