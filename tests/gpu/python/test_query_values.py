# SPDX-License-Identifier: Apache-2.0
"""qv on a GPU: strobe.mla and FlashAttention-3's calls against float64."""

import flash_attn_interface
import pytest
import strobe
import strobe.torch
import torch
from reference import attention, bound
from strobe.integrations.flash_attention import with_query_values

LATENT, ROPE, SCALE = 512, 64, 192**-0.5
SCORE_ERROR = 2.0**-16  # of 576 products in float32


def draw(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def check(out, q, k, v, **options):
    """Of sequences [batch, seqlen, heads, columns], whose rows of q and k are joined."""
    for b in range(len(q)):
        exact, _, p_abs_v, _ = attention(q[b], k[b], v[b], scale=SCALE, **options)
        assert ((out[b] - exact).abs() <= bound(exact, p_abs_v, out.dtype, SCORE_ERROR)).all()


@pytest.mark.parametrize(("queries", "heads"), [(1, 16), (2, 128), (70, 8)])
def test_mla(queries, heads):
    torch.manual_seed(queries)
    q_latent, q_rope = draw(2, queries, heads, LATENT), draw(2, queries, heads, ROPE)
    cache = draw(2, 300, LATENT + ROPE)
    out = strobe.mla(q_latent, q_rope, cache, scale=SCALE, causal=True)
    k = cache[:, :, None]
    check(out, torch.cat([q_latent, q_rope], -1), k, k[..., :LATENT], right=0)
    pages = cache.reshape(-1, 20, LATENT + ROPE)
    table = torch.arange(30, device="cuda", dtype=torch.int32).view(2, 15)
    used = torch.full((2,), 300, device="cuda", dtype=torch.int32)
    paged = strobe.mla(q_latent, q_rope, pages, scale=SCALE, causal=True, page_table=table, seqused_k=used)
    check(paged, torch.cat([q_latent, q_rope], -1), k, k[..., :LATENT], right=0)


@pytest.mark.parametrize("page_size", [1, 64])
def test_flash_attention_3(page_size):
    """Two caches, of the rotated and the latent columns, which nobody copies."""
    torch.manual_seed(page_size)
    q, qv = draw(2, 3, 16, ROPE), draw(2, 3, 16, LATENT)
    k, v = draw(2, 320, 1, ROPE), draw(2, 320, 1, LATENT)
    caches = [x.reshape(-1, page_size, 1, x.shape[-1]) for x in (k, v)]
    assert with_query_values(q, *caches, qv, {})[1].data_ptr() == k.data_ptr()
    table = torch.arange(640 // page_size, device="cuda", dtype=torch.int32).view(2, -1)
    used = torch.full((2,), 320, device="cuda", dtype=torch.int32)
    out = flash_attn_interface.flash_attn_with_kvcache(
        q, *caches, qv=qv, page_table=table, cache_seqlens=used, causal=True, softmax_scale=SCALE
    )
    check(out, torch.cat([q, qv], -1), torch.cat([k, v], -1), v, right=0)


def test_what_kernels_lack_is_joined():
    torch.manual_seed(0)
    q, qv = draw(1, 5, 4, 64), draw(1, 5, 4, 96)
    k, v = draw(1, 90, 2, 64), draw(1, 90, 2, 96)
    out = flash_attn_interface.flash_attn_func(q, k, v, qv=qv, softmax_scale=SCALE)
    check(out, torch.cat([q, qv], -1), torch.cat([k, v], -1), v)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, qv)]
    flash_attn_interface.flash_attn_func(*leaves[:3], qv=leaves[3]).float().square().sum().backward()
    assert all(torch.isfinite(x.grad).all() and x.grad.abs().max() > 0 for x in leaves)


def test_gradients_are_refused():
    q, qv = draw(1, 5, 4, 64).requires_grad_(), draw(1, 5, 4, 128)
    k, v = draw(1, 9, 4, 64), draw(1, 9, 4, 128)
    with pytest.raises(NotImplementedError, match="qv is given: the gpu engine has no gradients of it"):
        strobe.torch.attention(q, k, v, qv=qv).sum().backward()
