# SPDX-License-Identifier: Apache-2.0
"""Queries over shards of a cache: parts with their LSE, merged, against the whole cache."""

import itertools

import pytest
import strobe
import strobe.torch
import torch
from strobe.integrations import vllm
from strobe.torch import Shard, shard_attention

HEADS, HEADS_KV, HEAD_DIM, ROWS = 4, 2, 16, 96
LENGTHS = torch.tensor([96, 1, 40, 5], dtype=torch.int32)
SINK = torch.tensor([0.5, -1.0, 2.0, 0.0])


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def cache():
    return [draw(len(LENGTHS), ROWS, HEADS_KV, HEAD_DIM, seed=seed) for seed in (1, 2)]


def shard_of(x, shard):
    """The shard's rows of a cache [batch, rows, ..], and NaN where it has none."""
    keys = [j for j in range(ROWS) if j // shard.interleave % shard.world == shard.rank]
    return torch.cat([x[:, keys], x.new_full((x.shape[0], 8, *x.shape[2:]), float("nan"))], dim=1)


def parts(q, k, v, world, interleave, **options):
    for rank in range(world):
        shard = Shard(rank, world, interleave)
        yield shard_attention(q, shard_of(k, shard), shard_of(v, shard), LENGTHS, shard=shard, **options)


@pytest.mark.parametrize(("world", "interleave"), [(1, 1), (2, 1), (3, 4), (4, 1), (2, 48), (5, 20), (8, 16)])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"sink": SINK}, {"window": (7, 0), "causal": True}, {"softcap": 3.0, "scale": 0.4}],
    ids=str,
)
def test_one_query(world, interleave, options):
    q, (k, v) = draw(len(LENGTHS), 1, HEADS, HEAD_DIM), cache()
    out, lse = strobe.merge(list(parts(q, k, v, world, interleave, **options)))
    wanted = strobe.attention(q, k, v, seqused_k=LENGTHS, return_lse=True, **options)
    torch.testing.assert_close((out, lse), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("world", "interleave"), [(2, 1), (3, 4), (4, 1), (2, 48), (5, 20)])
@pytest.mark.parametrize("queries", [2, 5, 64])
@pytest.mark.parametrize("causal", [False, True])
def test_several_queries(world, interleave, queries, causal):
    q, (k, v) = draw(len(LENGTHS), queries, HEADS, HEAD_DIM), cache()
    out, lse = strobe.merge(list(parts(q, k, v, world, interleave, causal=causal, sink=SINK)))
    wanted = strobe.attention(q, k, v, seqused_k=LENGTHS, causal=causal, sink=SINK, return_lse=True)
    torch.testing.assert_close((out, lse), wanted, rtol=1e-5, atol=1e-5)


def test_packed_queries():
    ends = torch.tensor([0, 3, 4, 4, 9], dtype=torch.int32)
    q, (k, v) = draw(9, HEADS, HEAD_DIM), cache()
    packing = {"cu_seqlens_q": ends, "max_seqlen_q": 5, "causal": True}
    out, lse = strobe.merge(list(parts(q, k, v, 3, 2, **packing)))
    wanted = strobe.attention(q, k, v, seqused_k=LENGTHS, return_lse=True, **packing)
    torch.testing.assert_close((out, lse), wanted, rtol=1e-5, atol=1e-5)


def test_a_shard_without_keys_is_neutral():
    q, (k, v) = draw(len(LENGTHS), 1, HEADS, HEAD_DIM), cache()
    (out, lse), (empty, empty_lse) = parts(q, k, v, 2, ROWS)
    assert empty.eq(0).all() and empty_lse.eq(-torch.inf).all()
    torch.testing.assert_close(strobe.merge([(out, lse), (empty, empty_lse)]), (out, lse), rtol=0, atol=0)


def test_lengths_of_shards():
    lengths = torch.arange(200, dtype=torch.int32)
    for world, interleave in itertools.product((1, 2, 3), (1, 4, 7)):
        for rank in range(world):
            keys = [j // interleave % world == rank for j in range(200)]
            wanted = [sum(keys[:n]) for n in range(200)]
            assert Shard(rank, world, interleave).count(lengths).tolist() == wanted


@pytest.mark.parametrize("queries", [1, 4])
def test_pages_of_vllm(queries):
    """cp_world_size, cp_rank and cp_tot_seqused_k of its flash_attn_varlen_func."""
    page, batch = 8, len(LENGTHS)
    q, (k, v) = draw(batch * queries, HEADS, HEAD_DIM), cache()
    ends = torch.arange(batch + 1, dtype=torch.int32) * queries
    results = []
    for rank in range(2):
        shard = Shard(rank, 2)
        pools = [shard_of(x, shard)[:, :48].reshape(-1, page, HEADS_KV, HEAD_DIM) for x in (k, v)]
        table = torch.arange(batch * 6, dtype=torch.int32).reshape(batch, 6)
        results.append(
            vllm.flash_attn_varlen_func(
                *(q, *pools, queries, ends, 48),
                seqused_k=shard.count(LENGTHS),
                block_table=table,
                causal=True,
                s_aux=SINK,
                return_softmax_lse=True,
                cp_world_size=2,
                cp_rank=rank,
                cp_tot_seqused_k=LENGTHS,
            )
        )
    lengths = {"cu_seqlens_q": ends, "max_seqlen_q": queries, "seqused_k": LENGTHS}
    wanted = strobe.attention(q, k, v, causal=True, sink=SINK, return_lse=True, **lengths)
    torch.testing.assert_close(strobe.merge(results), wanted, rtol=1e-5, atol=1e-5)


def test_errors():
    q, (k, v) = draw(len(LENGTHS), 2, HEADS, HEAD_DIM), cache()
    for message, options in {
        "alibi_slopes is given over a shard": {"alibi_slopes": SINK},
        "window is given over a shard of the keys with several queries": {"window": (4, 0)},
        'causal is "top_left" over a shard': {"causal": "top_left"},
    }.items():
        with pytest.raises(NotImplementedError, match=message):
            shard_attention(q, k, v, LENGTHS, shard=(0, 2), **options)
    with pytest.raises(NotImplementedError, match="with 65 queries of a sequence"):
        shard_attention(draw(len(LENGTHS), 65, HEADS, HEAD_DIM), k, v, LENGTHS, shard=(0, 2), causal=True)
    with pytest.raises(TypeError, match="seqused_q_ is no option"):
        shard_attention(q, k, v, LENGTHS, shard=(0, 2), seqused_q_=1)
