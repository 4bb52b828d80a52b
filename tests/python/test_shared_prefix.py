# SPDX-License-Identifier: Apache-2.0
"""strobe.shared_prefix_attention: what a plain call over the same pages gives."""

import numpy as np
import pytest
import strobe
import torch

PAGE_SIZE = 8
PREFIX_PAGES = 5
PREFIX = PREFIX_PAGES * PAGE_SIZE
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def cache_of(lengths, dtype=torch.float32, heads_kv=2, head_dim=32):
    """Pages and their table. All that holds no key is NaN."""
    generator = torch.Generator().manual_seed(3)
    own = [-(-(length - PREFIX) // PAGE_SIZE) for length in lengths]
    table = torch.full((len(lengths), PREFIX_PAGES + max(own)), -1, dtype=torch.int32)
    free = torch.randperm(PREFIX_PAGES + sum(own), generator=generator).int().tolist()
    table[:, :PREFIX_PAGES] = torch.tensor([free.pop() for _ in range(PREFIX_PAGES)])
    for row, count in zip(table, own, strict=True):
        row[PREFIX_PAGES : PREFIX_PAGES + count] = torch.tensor([free.pop() for _ in range(count)])
    pages = PREFIX_PAGES + sum(own)
    k, v = (torch.randn(pages, PAGE_SIZE, heads_kv, head_dim, generator=generator).to(dtype) for _ in range(2))
    for row, count, length in zip(table, own, lengths, strict=True):
        used = (length - PREFIX) % PAGE_SIZE
        if used:
            for x in (k, v):
                x[row[PREFIX_PAGES + count - 1], used:] = torch.nan
    return k, v, {"page_table": table, "seqused_k": torch.tensor(lengths, dtype=torch.int32)}


def queries(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4)).to(dtype)


def check(q, k, v, cache, **options):
    """The results differ by the roundings of both arithmetics (docs/accuracy.md) at most, times the sum of P |V|."""
    o, lse = strobe.shared_prefix_attention(q, k, v, prefix_pages=PREFIX_PAGES, return_lse=True, **cache, **options)
    wanted, wanted_lse = strobe.attention(q, k, v, return_lse=True, **cache, **options)
    assert o.shape == wanted.shape
    assert lse.shape == wanted_lse.shape
    magnitude = strobe.attention(q, k, v.abs(), **cache, **options).float()
    # Of each call, in float32: scores, which move P and its sum; softcap's tanh; sums of up to 100 products; the merge.
    score = options.get("scale", 32**-0.5) * q.float().norm(dim=-1).max() * k.nan_to_num().float().norm(dim=-1).max()
    roundings = 2 * (2 * 34 * score + 2 * 8 * options.get("softcap", 0.0) + 2 * 100 + 20)
    float32 = roundings * UNIT_ROUNDOFF[torch.float32]
    # Roundings to 16 bits: of the parts, of the merged and of the plain result, and (the 1.01) of `magnitude`.
    stored = 0 if q.dtype == torch.float32 else 3 * UNIT_ROUNDOFF[q.dtype]
    assert ((o.float() - wanted.float()).abs() <= (float32 + stored) * 1.01 * magnitude).all()
    assert ((lse - wanted_lse).abs() <= float32).all()


@pytest.mark.parametrize("dtype", UNIT_ROUNDOFF)
@pytest.mark.parametrize("seqlen_q", [1, 3])
def test_equals_the_plain_call(dtype, seqlen_q):
    k, v, cache = cache_of([PREFIX + 9, PREFIX + 16, PREFIX + 3], dtype)
    q = queries(3, seqlen_q, 4, 32, dtype=dtype)
    check(q, k, v, cache, causal=True)
    check(q, k, v, cache, softcap=2.0, scale=0.3)


def test_packed_queries():
    k, v, cache = cache_of([PREFIX + 9, PREFIX + 16, PREFIX + 1])
    check(queries(8, 4, 32), k, v, cache, causal=True, cu_seqlens_q=torch.tensor([0, 1, 7, 8], dtype=torch.int32))


def test_a_sequence_may_end_with_the_prefix():
    k, v, cache = cache_of([PREFIX, PREFIX + 2])
    check(queries(2, 1, 4, 32), k, v, cache)


def test_numpy_and_outputs():
    k, v, cache = cache_of([PREFIX + 9, PREFIX + 5])
    q = queries(2, 2, 4, 32)
    wanted = strobe.shared_prefix_attention(q, k, v, prefix_pages=PREFIX_PAGES, **cache)
    arrays = [x.numpy() for x in (q, k, v)]
    out = np.empty_like(arrays[0])
    options = {name: x.numpy() for name, x in cache.items()}
    assert strobe.shared_prefix_attention(*arrays, prefix_pages=PREFIX_PAGES, out=out, **options) is out
    np.testing.assert_array_equal(out, wanted.numpy())


def test_misuse_is_reported():
    k, v, cache = cache_of([PREFIX + 2, PREFIX + 9])
    q = queries(2, 3, 4, 32)
    with pytest.raises(ValueError, match="prefix_pages is 8: it must be from 1 to the columns of page_table, 7"):
        strobe.shared_prefix_attention(q, k, v, prefix_pages=8, **cache)
    with pytest.raises(ValueError, match="must have the 40 keys of the prefix and as many more as it has queries"):
        strobe.shared_prefix_attention(q, k, v, prefix_pages=PREFIX_PAGES, causal=True, **cache)
    with pytest.raises(ValueError, match="seqused_k is too small: each sequence must have the 48 keys of the prefix"):
        strobe.shared_prefix_attention(q, k, v, prefix_pages=PREFIX_PAGES + 1, **cache)
