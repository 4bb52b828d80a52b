# SPDX-License-Identifier: Apache-2.0
"""qv of FlashAttention-3's calls."""

import flash_attn_interface
import pytest
import torch
from strobe.integrations.flash_attention import joined_columns, with_query_values


def test_query_values():
    """qv of three calls against scores q k^T + qv v^T in float64."""
    torch.manual_seed(3)
    q, qv = torch.randn(2, 5, 4, 64), torch.randn(2, 5, 4, 96)
    k, v = torch.randn(2, 9, 2, 64), torch.randn(2, 9, 2, 96)
    wide_k, wide_v = (x.double().repeat_interleave(2, dim=2) for x in (k, v))
    products = [torch.einsum("bqhd,bkhd->bhqk", a.double(), b) for a, b in ((q, wide_k), (qv, wide_v))]
    scores = sum(products) * (64 + 96) ** -0.5
    weights = scores.masked_fill(torch.ones(5, 9).tril(4) == 0, -torch.inf).softmax(-1)
    wanted = torch.einsum("bhqk,bkhd->bqhd", weights, wide_v).float()
    module = flash_attn_interface
    torch.testing.assert_close(module.flash_attn_func(q, k, v, qv=qv, causal=True), wanted, rtol=0, atol=1e-5)
    cu_seqlens = [torch.arange(3, dtype=torch.int32) * rows for rows in (5, 9)]
    packed = module.flash_attn_varlen_func(
        *(x.flatten(0, 1) for x in (q, k, v)), *cu_seqlens, 5, 9, qv=qv.flatten(0, 1), causal=True
    )
    torch.testing.assert_close(packed.unflatten(0, (2, 5)), wanted, rtol=0, atol=1e-5)
    pages = [x.reshape(6, 3, 2, -1) for x in (k, v)]
    table = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    cached = module.flash_attn_with_kvcache(q, *pages, qv=qv, page_table=table, cache_seqlens=9, causal=True)
    torch.testing.assert_close(cached, wanted, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="it has v's head_dim"):
        module.flash_attn_func(q, k, v, qv=q)
    elsewhere = [torch.zeros(1, 1, 1, 296, device="meta") for _ in range(4)]
    with pytest.raises(NotImplementedError, match="are 592 together: on a GPU they are at most 576"):
        with_query_values(*elsewhere, {})


def test_values_and_keys_of_one_row_are_not_copied():
    rows = torch.randn(6, 16, 1, 576)
    v, k = rows.split([512, 64], dim=-1)
    q, qv = torch.randn(2, 3, 8, 64), torch.randn(2, 3, 8, 512)
    queries, keys = joined_columns(q, k, v, qv)
    assert keys.data_ptr() == rows.data_ptr()
    assert torch.equal(keys, rows)
    assert torch.equal(queries, torch.cat([qv, q], dim=-1))
    in_other_rows = rows[1:].split([512, 64], dim=-1)[1]
    behind = torch.randn(5, 16, 1, 520)[..., 8:]
    for other_k, other_v in ((k.clone(), v), (k, v.clone()), (in_other_rows, v[:-1]), (k[:-1], behind)):
        queries, keys = joined_columns(q, other_k, other_v, qv)
        assert torch.equal(keys, torch.cat([other_k, other_v], dim=-1))
        assert torch.equal(queries, torch.cat([q, qv], dim=-1))
    leaves = [x.clone().requires_grad_() for x in (k, v)]
    assert joined_columns(q, *leaves, qv)[1].requires_grad


def test_query_values_have_gradients():
    torch.manual_seed(4)
    q, qv = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 4, 24)
    k, v = torch.randn(2, 9, 4, 16), torch.randn(2, 9, 4, 24)
    d_o = torch.randn(2, 5, 4, 24)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, qv)]
    flash_attn_interface.flash_attn_func(*leaves[:3], qv=leaves[3], causal=True).backward(d_o)
    exact = [x.double().requires_grad_() for x in (q, k, v, qv)]
    scores = sum(torch.einsum("bqhd,bkhd->bhqk", a, b) for a, b in ((exact[0], exact[1]), (exact[3], exact[2])))
    weights = (scores * 40**-0.5).masked_fill(torch.ones(5, 9).tril(4) == 0, -torch.inf).softmax(-1)
    torch.einsum("bhqk,bkhd->bqhd", weights, exact[2]).backward(d_o.double())
    for leaf, wanted in zip(leaves, exact, strict=True):
        torch.testing.assert_close(leaf.grad, wanted.grad.float(), rtol=0, atol=1e-5)
