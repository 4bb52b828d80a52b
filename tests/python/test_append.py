# SPDX-License-Identifier: Apache-2.0
"""strobe.append: caches of NumPy and PyTorch against float64."""

import jax.numpy as jnp
import numpy as np
import pytest
import strobe
import torch

HEADS, HEAD_DIM, PAGE_SIZE = 2, 16, 4
LENGTHS, NEW = np.array([3, 0, 6], np.int32), 3


@pytest.fixture
def generator():
    return np.random.default_rng(5)


def normal(generator, *shape):
    return generator.standard_normal(shape, dtype=np.float32)


def rotated(x, positions, cos, sin):
    """Halves, of float64 [rows, heads, head_dim]."""
    pairs = cos.shape[1]
    a, b, rest = np.split(x.astype(np.float64), [pairs, 2 * pairs], axis=-1)
    c, s = cos[positions][:, None], sin[positions][:, None]
    return np.concatenate([a * c - b * s, a * s + b * c, rest], axis=-1)


def angles(generator, pairs=5, positions=32):
    angle = generator.uniform(0, 100, (positions, pairs))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def test_pages_and_rotation(generator):
    k_cache, v_cache = (np.full((12, PAGE_SIZE, HEADS, HEAD_DIM), np.nan, np.float32) for _ in range(2))
    k, v, q = (normal(generator, 3, NEW, HEADS * group, HEAD_DIM) for group in (1, 1, 2))
    pages = generator.permutation(12).astype(np.int32).reshape(3, 4)
    cos, sin = angles(generator)
    q_out = strobe.append(k_cache, v_cache, k, v, LENGTHS, page_table=pages, cos=cos, sin=sin, q=q)
    written = np.zeros(k_cache.shape[:2], bool)
    for b, length in enumerate(LENGTHS):
        rows = np.arange(length, length + NEW)
        places = pages[b, rows // PAGE_SIZE], rows % PAGE_SIZE
        written[places] = True
        np.testing.assert_allclose(k_cache[places], rotated(k[b], rows, cos, sin), atol=1e-6)
        np.testing.assert_array_equal(v_cache[places], v[b])
        np.testing.assert_allclose(q_out[b], rotated(q[b], rows, cos, sin), atol=1e-6)
    assert np.isnan(k_cache[~written]).all()
    assert np.isnan(v_cache[~written]).all()


def test_torch_packed_rows_into_chosen_entries_of_bfloat16(generator):
    k_cache, v_cache = (torch.zeros(5, 12, HEADS, HEAD_DIM, dtype=torch.bfloat16) for _ in range(2))
    counts, entries = [2, 0, 5], torch.tensor([4, 0, 2], dtype=torch.int32)
    k, v = (torch.from_numpy(normal(generator, sum(counts), HEADS, HEAD_DIM)) for _ in range(2))
    cumulative = torch.tensor([0, 2, 2, 7], dtype=torch.int32)
    lengths = torch.from_numpy(LENGTHS)
    assert strobe.append(k_cache, v_cache, k, v, lengths, cu_seqlens_new=cumulative, cache_batch_idx=entries) is None
    for cache, new in ((k_cache, k), (v_cache, v)):
        wanted = torch.zeros_like(cache)
        wanted[4, 3:5] = new[:2].bfloat16()
        wanted[2, 6:11] = new[2:].bfloat16()
        assert torch.equal(cache, wanted)


@pytest.mark.parametrize(("dtype", "largest"), [(torch.int8, 127), (torch.float8_e4m3fn, 448)])
def test_eight_bit_caches(generator, dtype, largest):
    k_cache, v_cache = (torch.zeros(3, 12, HEADS, HEAD_DIM, dtype=torch.uint8).view(dtype) for _ in range(2))
    k, v = (torch.from_numpy(normal(generator, 3, NEW, HEADS, HEAD_DIM)) for _ in range(2))
    scales = torch.tensor([1.5, 4.0]).view(1, 2, 1) / largest
    strobe.append(k_cache, v_cache, k, v, torch.from_numpy(LENGTHS), k_descale=scales, v_descale=scales)
    for b, length in enumerate(LENGTHS):
        quotient = (v[b] / scales.view(1, 2, 1)).clamp(-largest, largest)
        wanted = quotient.round() if dtype == torch.int8 else quotient
        assert torch.equal(v_cache[b, length : length + NEW].float(), wanted.to(dtype).float())
        assert not v_cache[b, length + NEW :].float().any()


def row_scales(rows, largest):
    """[.., heads, rows] of [.., rows, heads, head_dim]."""
    return (rows.abs().amax(-1) / largest).clamp(min=2**-80).swapaxes(-1, -2)


@pytest.mark.parametrize("page_size", [None, PAGE_SIZE])
@pytest.mark.parametrize(("dtype", "largest"), [(torch.int8, 127), (torch.float8_e4m3fn, 448)])
def test_scales_of_rows(generator, dtype, largest, page_size):
    rows = page_size or 12
    pages = 12 // rows
    table = torch.from_numpy(generator.permutation(3 * pages).astype(np.int32)).view(3, pages)
    where = {"page_table": table} if page_size else {"cache_batch_idx": table[:, 0].contiguous()}
    k_cache, v_cache = (torch.zeros(3 * pages, rows, HEADS, HEAD_DIM, dtype=torch.uint8).view(dtype) for _ in range(2))
    k_scales, v_scales = (torch.zeros(3 * pages, HEADS, rows) for _ in range(2))
    k, v = (torch.from_numpy(normal(generator, 3, NEW, HEADS, HEAD_DIM)) for _ in range(2))
    v[0, 0] *= 1e-3
    lengths = torch.from_numpy(LENGTHS)
    strobe.append(k_cache, v_cache, k, v, lengths, k_row_descale=k_scales, v_row_descale=v_scales, **where)
    gathered = [x[table].transpose(1, 2).reshape(3, HEADS, 12) for x in (k_scales, v_scales)]
    assert [int(x.count_nonzero()) for x in gathered] == [3 * NEW * HEADS] * 2
    for b, length in enumerate(LENGTHS):
        new = slice(length, length + NEW)
        assert torch.equal(gathered[0][b, :, new], row_scales(k[b], largest))
        assert torch.equal(gathered[1][b, :, new], row_scales(v[b], largest))
    wide = [
        x[table].flatten(1, 2).float() * scale.transpose(1, 2)[..., None]
        for x, scale in zip((k_cache, v_cache), gathered, strict=True)
    ]
    step = 0.5 / 127 if largest == 127 else 2**-4  # of the row's largest
    for b, length in enumerate(LENGTHS):
        error = (wide[1][b, length : length + NEW] - v[b]).abs()
        assert (error <= (1 + 1e-5) * step * v[b].abs().amax(-1, keepdim=True)).all()
    q = torch.from_numpy(normal(generator, 3, 1, HEADS, HEAD_DIM))
    scales = {"k_descale": gathered[0], "v_descale": gathered[1]}
    o = strobe.attention(q, k_cache, v_cache, seqused_k=lengths + NEW, **scales, **where)
    assert torch.equal(o, strobe.attention(q, *wide, seqused_k=lengths + NEW))


def test_left_padding_and_positions(generator):
    cos, sin = angles(generator)
    k, v = (normal(generator, 3, NEW, HEADS, HEAD_DIM) for _ in range(2))
    padding = np.array([2, 0, 6], np.int32)
    positions = LENGTHS[:, None] - padding[:, None] + np.arange(NEW, dtype=np.int32)
    caches = []
    for options in ({"leftpad_k": padding}, {"positions": positions}):
        k_cache, v_cache = (np.zeros((3, 12, HEADS, HEAD_DIM), np.float32) for _ in range(2))
        strobe.append(k_cache, v_cache, k, v, LENGTHS, cos=cos, sin=sin, **options)
        caches.append(k_cache)
    np.testing.assert_array_equal(*caches)
    np.testing.assert_allclose(caches[0][0, 3:6], rotated(k[0], positions[0], cos, sin), atol=1e-6)


def test_what_cannot_be_appended_changes_nothing(generator):
    k_cache = np.zeros((3, 8, HEADS, HEAD_DIM), np.float32)
    v_cache = np.zeros_like(k_cache)
    k = normal(generator, 3, NEW, HEADS, HEAD_DIM)
    with pytest.raises(ValueError, match="sequence 2 has 6 rows and appends 3: its part of the cache has 8"):
        strobe.append(k_cache, v_cache, k, k, LENGTHS)
    with pytest.raises(ValueError, match="k_new is missing: give a tensor"):
        strobe.append(k_cache, v_cache, None, k, LENGTHS)
    with pytest.raises(TypeError, match="interleaved is of type int: it must be True or False"):
        strobe.append(k_cache, v_cache, k[:, :1], k[:, :1], LENGTHS, interleaved=1)
    k_cache.flags.writeable = False
    with pytest.raises(ValueError, match="k_cache"):
        strobe.append(k_cache, v_cache, k[:, :1], k[:, :1], LENGTHS)
    assert not k_cache.any()
    assert not v_cache.any()


def test_gradients_and_jax_are_rejected(generator):
    new = torch.from_numpy(normal(generator, 3, NEW, HEADS, HEAD_DIM)).requires_grad_()
    cache = torch.zeros(3, 12, HEADS, HEAD_DIM)
    lengths = torch.from_numpy(LENGTHS)
    with pytest.raises(ValueError, match="requires a gradient"):
        strobe.append(cache, cache.clone(), new, new, lengths)
    with torch.no_grad():
        strobe.append(cache, cache.clone(), new, new, lengths)
    with pytest.raises(NotImplementedError, match="arrays of JAX"):
        strobe.append(jnp.zeros((1, 2, 1, 4)), None, None, None, None)
