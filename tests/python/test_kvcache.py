# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache of both drop-ins and paged varlen calls, by random options against float64.

The options are those that flash-attn's own test of its cache goes through, and FlashAttention-3's beside them.
STROBE_TEST_DEVICE=cuda: on a GPU; STROBE_TEST_CALLS and STROBE_TEST_FIRST: how many calls, from which seed on.
"""

import os

import flash_attn
import flash_attn_interface
import numpy as np
import pytest
import reference
import torch
from strobe.integrations import kv_cache, vllm
from strobe.integrations.flash_attention import forward_pass

HEAD_DIM, WIDE_HEAD_DIM, CAPACITY, POSITIONS = 32, 320, 40, 64
DEVICE = os.environ.get("STROBE_TEST_DEVICE", "cpu")
CALLS = int(os.environ.get("STROBE_TEST_CALLS", "40"))
FIRST = int(os.environ.get("STROBE_TEST_FIRST", "0"))
DTYPES = [torch.bfloat16, torch.float16] + ([torch.float32] if DEVICE == "cpu" else [])


def on_device(x):
    return x.to(DEVICE) if isinstance(x, torch.Tensor) else x


class Call:
    """A random call of flash_attn_with_kvcache, and what its cache and output must be."""

    def __init__(self, seed, version):
        self.random = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.version = version
        self.dtype = self.random.choice(DTYPES)
        self.batch, self.heads_kv = self.integer(1, 4), self.integer(1, 2)
        self.heads = self.heads_kv * self.integer(1, 3)
        self.head_dim = WIDE_HEAD_DIM if self.chance(0.25) else HEAD_DIM
        self.page_size = self.random.choice([0, 1, 3, 16])
        self.packed = version == 3 and self.chance()  # q
        self.new = self.chance(0.7)
        self.packed_new = self.new and version == 3 and self.chance()
        self.causal, self.softcap = self.chance(), self.random.choice([0.0, 5.0])
        self.window = (self.integer(0, 12), self.integer(0, 6)) if self.chance(0.3) else (-1, -1)
        self.make_lengths()
        self.make_cache()
        self.make_options()

    def integer(self, first, last):
        return int(self.random.integers(first, last + 1))

    def chance(self, probability=0.5):
        return bool(self.random.random() < probability)

    def make_lengths(self):
        def counts(packed, first, last):
            values = [self.integer(first, last) for _ in range(self.batch)]
            return values if packed else [values[0]] * self.batch

        self.counts_q = counts(self.packed, 1, 5)
        self.counts = counts(self.packed_new, 0 if self.packed_new else 1, 7) if self.new else [0] * self.batch
        self.lengths = [self.integer(0 if self.new else 1, CAPACITY - count) for count in self.counts]
        self.padding = [self.integer(0, max(n - 1, 0)) for n in self.lengths] if self.chance(0.4) else None

    def tensor(self, *shape):
        return torch.randn(*shape, dtype=torch.float64).to(self.dtype)

    def rows(self, counts, packed, heads):
        return self.tensor(*((sum(counts),) if packed else (self.batch, counts[0])), heads, self.head_dim)

    def make_cache(self):
        self.table = self.batch_idx = None
        if self.page_size:
            per_sequence = -(-CAPACITY // self.page_size)
            pages = self.batch * per_sequence + 3
            order = self.random.permutation(pages)[: self.batch * per_sequence]
            self.table = torch.from_numpy(order.reshape(self.batch, -1)).int()
            shape = (pages, self.page_size)
        else:
            shape = (self.batch, CAPACITY)
            if self.chance():
                shape = (self.batch + 2, CAPACITY)
                self.batch_idx = torch.from_numpy(self.random.permutation(self.batch + 2)[: self.batch]).int()
        self.caches = [
            torch.full((*shape, self.heads_kv, self.head_dim), torch.nan, dtype=self.dtype) for _ in range(2)
        ]
        for cache in self.caches:
            for b, length in enumerate(self.lengths):
                cache[self.places(b, range(length))] = self.tensor(length, self.heads_kv, self.head_dim)
        self.before = [cache.clone() for cache in self.caches]

    def places(self, b, rows):
        rows = torch.tensor(list(rows), dtype=torch.long)
        if self.page_size:
            return self.table[b, rows // self.page_size].long(), rows % self.page_size
        return torch.full_like(rows, b if self.batch_idx is None else int(self.batch_idx[b])), rows

    def make_options(self):
        self.q = self.rows(self.counts_q, self.packed, self.heads)
        self.k, self.v = (self.rows(self.counts, self.packed_new, self.heads_kv) if self.new else None for _ in "kv")
        self.cos = self.sin = self.rotary_seqlens = None
        self.interleaved = self.chance()
        if self.new and self.chance(0.7):
            angles = torch.rand(POSITIONS, self.integer(1, self.head_dim // 2), dtype=torch.float64) * 100
            self.cos, self.sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)
            if self.version == 3 and self.chance(0.3):
                self.rotary_seqlens = torch.tensor([self.integer(0, 50) for _ in range(self.batch)]).int()
        self.alibi_slopes = torch.rand(self.heads) * 0.3 if self.version == 2 and self.chance(0.3) else None

    def cumulative(self, counts):
        return torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32)

    def run(self):
        """(out, lse), of every sequence."""
        given = {
            "rotary_cos": self.cos,
            "rotary_sin": self.sin,
            "rotary_interleaved": self.interleaved,
            "cache_seqlens": torch.tensor(self.lengths, dtype=torch.int32),
            "cache_batch_idx": self.batch_idx,
            "cache_leftpad": None if self.padding is None else torch.tensor(self.padding, dtype=torch.int32),
            "causal": self.causal,
            "window_size": self.window,
            "softcap": self.softcap,
            "num_splits": self.integer(0, 3),
            "return_softmax_lse": True,
        }
        caches = [on_device(cache) for cache in self.caches]
        tensors = [on_device(x) for x in (self.q, *caches, self.k, self.v)]
        if self.version == 2:
            given |= {"block_table": self.table, "alibi_slopes": self.alibi_slopes}
            given = {name: on_device(x) for name, x in given.items()}
            out, lse = flash_attn.flash_attn_with_kvcache(*tensors, **given)
        else:
            given |= {"page_table": self.table, "rotary_seqlens": self.rotary_seqlens}
            if self.packed:
                given |= {"cu_seqlens_q": self.cumulative(self.counts_q), "max_seqlen_q": max(self.counts_q)}
            if self.packed_new:
                given |= {"cu_seqlens_k_new": self.cumulative(self.counts)}
            given = {name: on_device(x) for name, x in given.items()}
            out, lse, *rest = flash_attn_interface.flash_attn_with_kvcache(*tensors, **given)
            assert rest == [None, None]
        self.caches = [cache.cpu() for cache in caches]
        out, lse = out.cpu(), lse.cpu()
        if self.packed:
            return out.split(self.counts_q), lse.split(self.counts_q, dim=1)
        return out.unbind(), lse.unbind()

    def sequences(self, x, counts, packed):
        return x.split(counts) if packed else x.unbind()

    def rotated(self, x, first, in_order):
        """Rows of one sequence in float64, the first at position `first`."""
        x = x.double().numpy()
        if self.cos is None:
            return x
        pairs = self.cos.shape[1]
        at = first + np.arange(len(x)) * in_order
        c, s = (table.double().numpy()[at][:, None] for table in (self.cos, self.sin))
        columns = [np.arange(pairs) * 2, np.arange(pairs) * 2 + 1] if self.interleaved else None
        a_at, b_at = columns or [np.arange(pairs), np.arange(pairs) + pairs]
        y = x.copy()
        y[..., a_at], y[..., b_at] = x[..., a_at] * c - x[..., b_at] * s, x[..., a_at] * s + x[..., b_at] * c
        return y

    def check(self):
        outs, lses = self.run()
        # Rounding of what is rotated and of O; the scores' own rounding is that of their operands.
        unit = {torch.float32: 2**-21, torch.bfloat16: 2**-6, torch.float16: 2**-9}[self.dtype]
        written = [torch.zeros(cache.shape[:2], dtype=torch.bool) for cache in self.caches]
        queries = self.sequences(self.q, self.counts_q, self.packed)
        news = [self.sequences(x, self.counts, self.packed_new) if self.new else None for x in (self.k, self.v)]
        in_order = self.causal or self.window != (-1, -1)
        for b, length in enumerate(self.lengths):
            first = length if self.rotary_seqlens is None else int(self.rotary_seqlens[b])
            places = self.places(b, range(length, length + self.counts[b]))
            if self.new:
                wanted = [self.rotated(news[0][b], first, True), news[1][b].double().numpy()]
                for cache, mask, rows in zip(self.caches, written, wanted, strict=True):
                    mask[places] = True
                    np.testing.assert_allclose(cache[places].double().numpy(), rows, rtol=unit, atol=unit)
            padding = 0 if self.padding is None else self.padding[b]
            keys = self.places(b, range(padding, length + self.counts[b]))
            o, lse, _ = reference.attention(
                self.rotated(queries[b], first, in_order)[None],
                *(cache[keys].double().numpy()[None] for cache in self.caches),
                causal=self.causal,
                window=self.window,
                softcap=self.softcap,
                alibi_slopes=None if self.alibi_slopes is None else self.alibi_slopes.numpy(),
            )
            np.testing.assert_allclose(outs[b].double().numpy(), o[0], rtol=unit, atol=4 * unit)
            np.testing.assert_allclose(lses[b].double().numpy(), lse[0], rtol=unit, atol=4 * unit)
        for cache, before, mask in zip(self.caches, self.before, written, strict=True):
            torch.testing.assert_close(cache[~mask], before[~mask], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("version", [2, 3])
def test_random_calls(version):
    for seed in range(FIRST, FIRST + CALLS):
        Call(seed, version).check()


def test_gathered_keys_are_the_same(monkeypatch):
    """What devices whose engines read no pages take: the same outputs, on the CPU for once."""
    for version in (2, 3):
        for seed in range(40):
            direct, by_copy = (Call(seed, version) for _ in range(2))
            wanted = direct.run()
            with monkeypatch.context() as patch:
                patch.setattr(kv_cache, "cached_attention", gathered_attention)
                results = by_copy.run()
            for result, expected in zip((*results[0], *results[1]), (*wanted[0], *wanted[1]), strict=True):
                torch.testing.assert_close(result, expected, rtol=0, atol=0)


def gathered_attention(q, cache, lengths, **options):
    k, v, lengths = kv_cache.gathered(cache, lengths)
    return forward_pass(q, k, v, seqused_k=lengths, **options)


def test_the_cpu_reads_pages_where_they_are(monkeypatch):
    q, k, v, table, lengths, _, _ = paged_batch()
    monkeypatch.setattr(kv_cache, "gathered", None)
    wide = torch.zeros(3, 12, dtype=torch.int64)
    wide[:, ::2] = torch.nn.functional.pad(table, (0, 6 - table.shape[1]))
    strided = wide.int()[:, ::2][:, : table.shape[1]]  # neither its rows nor its entries are dense
    queries = q[:3, None].requires_grad_()
    call = flash_attn.flash_attn_with_kvcache
    wanted = call(queries, k, v, cache_seqlens=lengths, block_table=table, causal=True)
    out = call(queries, k, v, cache_seqlens=lengths, block_table=strided, causal=True)
    assert torch.equal(out, wanted)
    assert not out.requires_grad
    entries = torch.tensor([2, 0, 1], dtype=torch.int32)
    contiguous = [torch.zeros(3, 48, 2, HEAD_DIM) for _ in "kv"]
    padding = torch.tensor([7, 0, 3], dtype=torch.int32)
    for pages, cache in zip((k, v), contiguous, strict=True):
        for b, length in enumerate(lengths.tolist()):
            row = torch.arange(length)
            cache[entries[b], padding[b] + row] = pages[table[b, row // 16].long(), row % 16]
    out = call(
        *(queries, *contiguous),
        cache_seqlens=lengths + padding.int(),
        cache_batch_idx=entries,
        cache_leftpad=padding,
        causal=True,
    )
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("paged", [False, True])
def test_8_bit_caches_with_new_keys(dtype, paged):
    torch.manual_seed(3)
    largest = 127 if dtype == torch.int8 else 448
    scales = [(2 + torch.rand(2, 2)) / largest for _ in "kv"]
    table = torch.randperm(10, dtype=torch.int32).view(2, 5) if paged else None
    shape = (10, 8, 2, 32) if paged else (2, 40, 2, 32)
    caches = [torch.zeros(shape).to(dtype) for _ in "kv"]
    new = [torch.randn(2, 20, 2, 32).bfloat16() for _ in "kv"]
    q = torch.randn(2, 6, 4, 32).bfloat16()
    options = {"k_descale": scales[0], "v_descale": scales[1], "page_table": table, "causal": True}
    lengths = torch.zeros(2, dtype=torch.int32)
    call = flash_attn_interface.flash_attn_with_kvcache
    out = call(q, *caches, *new, cache_seqlens=lengths, **options)
    stored = []
    for x, scale in zip(new, scales, strict=True):
        units = (x.float() / scale[:, None, :, None]).clamp(-largest, largest)
        units = units.round() if dtype == torch.int8 else units.to(dtype).float()
        stored.append((units * scale[:, None, :, None]).bfloat16())
    wanted = flash_attn_interface.flash_attn_func(q, *stored, causal=True)
    torch.testing.assert_close(out, wanted, rtol=0, atol=0)
    if dtype == torch.float8_e4m3fn:
        eighth = q.to(dtype)
        q_descale = 0.5 + torch.rand(2, 2)
        out = call(eighth, *caches, cache_seqlens=lengths + 20, q_descale=q_descale, **options)
        by_head = q_descale.repeat_interleave(2, 1)[:, None, :, None]
        wanted = flash_attn_interface.flash_attn_func(
            eighth.float() * by_head, *(x.float() for x in stored), causal=True
        )
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out.float(), wanted, rtol=2**-6, atol=2**-6)
        again = [torch.zeros(shape).to(dtype) for _ in "kv"]
        units = [(x.float() / scale[:, None, :, None]).to(dtype) for x, scale in zip(new, scales, strict=True)]
        call(eighth, *again, *units, cache_seqlens=lengths, **options)
        for one, other in zip(again, caches, strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def paged_batch(page_size=16):
    """A decode of one query, a prefill, and a chunk of one: (q, k, v pages, table, lengths, counts, sequences)."""
    torch.manual_seed(1)
    counts, lengths = [1, 9, 4], [37, 9, 20]
    table = torch.randperm(24, dtype=torch.int32)[: 3 * (48 // page_size)].view(3, -1)
    pages = [torch.full((max(24, table.numel()), page_size, 2, HEAD_DIM), torch.nan) for _ in "kv"]
    sequences = []
    for b, length in enumerate(lengths):
        rows = torch.arange(length)
        places = table[b, rows // page_size].long(), rows % page_size
        for x in pages:
            x[places] = torch.randn(length, 2, HEAD_DIM)
        sequences.append([x[places].double().numpy()[None] for x in pages])
    q = torch.randn(sum(counts), 4, HEAD_DIM)
    return q, *pages, table, torch.tensor(lengths, dtype=torch.int32), counts, sequences


def test_mixed_batches_of_vllm():
    q, k, v, table, lengths, counts, sequences = paged_batch()
    cu_seqlens = torch.tensor([0, 1, 10, 14], dtype=torch.int32)
    slopes, sink, out = torch.rand(4) * 0.2, torch.randn(4), torch.full_like(q, torch.nan)
    options = {"causal": True, "softcap": 8.0, "alibi_slopes": slopes}
    result, lse = vllm.flash_attn_varlen_func(
        q=q, k=k, v=v, out=out, cu_seqlens_q=cu_seqlens, max_seqlen_q=9, seqused_k=lengths, max_seqlen_k=37,
        window_size=[15, 0], block_table=table, s_aux=sink, return_softmax_lse=True, fa_version=2, **options,
    )  # fmt: skip
    assert result is out
    options["alibi_slopes"] = slopes.numpy()
    for b, (rows, logs) in enumerate(zip(out.split(counts), lse.split(counts, dim=1), strict=True)):
        queries = q.split(counts)[b].double().numpy()[None]
        o, wanted_lse, _ = reference.attention(queries, *sequences[b], window=(15, 0), sink=sink.numpy(), **options)
        np.testing.assert_allclose(rows, o[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(logs, wanted_lse[0], rtol=1e-5, atol=1e-5)


def test_varlen_with_a_block_table():
    q, k, v, table, lengths, counts, sequences = paged_batch()
    cu_seqlens = torch.tensor([0, 1, 10, 14], dtype=torch.int32)
    cu_seqlens_k = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    arguments = (q, k, v, cu_seqlens, cu_seqlens_k, 9, 37)
    out, lse, none = flash_attn.flash_attn_varlen_func(
        *arguments, causal=True, block_table=table, return_attn_probs=True
    )
    assert none is None
    assert lse.shape == (4, 14)
    beneath, beneath_lse, probabilities, _ = flash_attn.flash_attn_interface._flash_attn_varlen_forward(
        *arguments, 0.0, None, True, block_table=table
    )
    torch.testing.assert_close((beneath, beneath_lse), (out, lse), rtol=0, atol=0)
    assert probabilities.numel() == 0
    by_use = flash_attn.flash_attn_interface._flash_attn_varlen_forward(
        *arguments, 0.0, None, True, block_table=table, seqused_k=lengths, leftpad_k=torch.tensor([0, 0, 5]).int()
    )[0]
    torch.testing.assert_close(by_use[:10], out[:10], rtol=0, atol=0)
    last = (x[:, 5:] for x in sequences[2])
    wanted = reference.attention(q[10:].double().numpy()[None], *last, causal=True)[0][0]
    np.testing.assert_allclose(by_use[10:], wanted, atol=1e-5)
    with pytest.raises(NotImplementedError, match="pages are for inference"):
        flash_attn.flash_attn_interface._flash_attn_varlen_forward(*arguments, 0.1, None, True, block_table=table)
    for b, rows in enumerate(out.split(counts)):
        queries = q.split(counts)[b].double().numpy()[None]
        np.testing.assert_allclose(rows, reference.attention(queries, *sequences[b], causal=True)[0][0], atol=1e-5)
    packed = [torch.from_numpy(np.concatenate([s[i][0] for s in sequences])).float() for i in range(2)]
    wanted = vllm.flash_attn_varlen_func(
        q, *packed, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=9, max_seqlen_k=37, causal=True
    )
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


def test_rows_of_a_page_table():
    """cache_batch_idx with pages, as FlashAttention-3 alone has it."""
    q, k, v, table, lengths, _, _ = paged_batch()
    order = torch.tensor([2, 0], dtype=torch.int32)
    call = flash_attn_interface.flash_attn_with_kvcache
    wanted = call(q[:2, None], k, v, cache_seqlens=lengths[order], page_table=table[order])
    out = call(q[:2, None], k, v, cache_seqlens=lengths[order], page_table=table, cache_batch_idx=order)
    torch.testing.assert_close(out, wanted, rtol=0, atol=0)


def test_what_a_cache_lacks_is_said():
    q, k, v, table, lengths, _, _ = paged_batch()
    q = q[:3, None]
    call = flash_attn.flash_attn_with_kvcache
    wrong = table.clone()
    wrong[1, 0] = 24
    with pytest.raises(ValueError, match="page"):
        call(q, k, v, cache_seqlens=lengths, block_table=wrong)
    for new, lengths_before in ((None, lengths + 12), (k[:3, :1], lengths + 11), (None, 49)):
        with pytest.raises(RuntimeError, match="49 rows with its new ones, but block_table has 3 pages of 16 rows"):
            call(q, k, v, new, new, cache_seqlens=lengths_before, block_table=table)
    with pytest.raises(ValueError, match="cache_batch_idx"):
        call(q, k, v, cache_seqlens=lengths, block_table=table, cache_batch_idx=lengths)
    with pytest.raises(ValueError, match="rotary_cos is given without k"):
        call(q, k, v, cache_seqlens=lengths, block_table=table, rotary_cos=q[0, 0], rotary_sin=q[0, 0])
    with pytest.raises(ValueError, match="seqused_k"):
        vllm.flash_attn_varlen_func(q[:, 0], k, v, 1, torch.arange(4).int(), 1, block_table=table)
    with pytest.raises(NotImplementedError, match="cp_world_size"):
        vllm.flash_attn_varlen_func(q[:, 0], k, v, 1, torch.arange(4).int(), 1, cp_world_size=2)
