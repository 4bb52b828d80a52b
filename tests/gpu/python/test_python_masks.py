# SPDX-License-Identifier: Apache-2.0
"""Masks, checkpoints and large scores through PyTorch on a GPU: pytest tests/gpu/python/test_python_masks.py."""

import math

import pytest
import strobe.torch
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

SHAPE = (2, 4, 200, 64)  # [batch, heads, seqlen, head_dim]


def draw(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, dtype=dtype, device="cuda")


def with_gradients(function, inputs, d_o, **arguments):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*inputs, **arguments)
    out.backward(d_o.to(out.dtype))
    return [out.detach(), *(x.grad for x in inputs)]


def strobe_sdpa(*inputs, **arguments):
    with strobe.torch.sdpa():
        return scaled_dot_product_attention(*inputs, **arguments)


def exact(*inputs, **arguments):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return scaled_dot_product_attention(*inputs, **arguments)


def assert_near(found, wanted):
    """Rounded probabilities, dS and results: a few units in the last place of the largest element."""
    for x, y in zip(found, wanted, strict=True):
        assert x.isfinite().all()
        assert (x.double() - y).abs().max() <= 4 * torch.finfo(x.dtype).eps * y.abs().max() + 1e-6


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_hidden_keys_reach_nothing(poison, dtype):
    q, k, v, d_o = (draw(*SHAPE, dtype=dtype) for _ in range(4))
    mask = (torch.arange(200, device="cuda") < torch.tensor([[131], [200]], device="cuda"))[:, None, None]
    wanted = with_gradients(exact, [x.double() for x in (q, k, v)], d_o, attn_mask=mask)
    for x in (k, v):
        x[0, :, 131:] = poison
    assert_near(with_gradients(strobe_sdpa, (q, k, v), d_o, attn_mask=mask), wanted)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("seqlen_q", [1, 7])
def test_few_queries_read_the_keys_that_they_see(seqlen_q, heads_first, head_dim):
    shape = (3, 8, 700, head_dim)
    q, (k, v) = draw(3, 16, seqlen_q, head_dim), (draw(*shape) for _ in range(2))
    mask = torch.rand(3, 1, 1, 700, device="cuda") < torch.tensor([1.0, 0.5, 0.1], device="cuda").view(3, 1, 1, 1)
    wanted = exact(*(x.double() for x in (q, k, v)), attn_mask=mask, enable_gqa=True)
    for x in (k, v):
        x.masked_fill_(~mask.transpose(-1, -2), math.nan)
    if not heads_first:
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    kept = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = [strobe_sdpa(q, k, v, attn_mask=mask, enable_gqa=True), with_mask(q, k, v, mask[:, 0, 0])]
    # Neither call copies K or V; the workspace and the rows' numbers are smaller.
    assert torch.cuda.max_memory_allocated() - kept < 2 * k.numel() * k.itemsize
    assert_near(found, [wanted, wanted])


@pytest.mark.parametrize("value", [-1e9, torch.finfo(torch.bfloat16).min])
def test_rows_of_a_finite_mask_take_the_mean(value):
    """What float32 softmax gives where every score is the mask's value."""
    q, k, v, d_o = (draw(*SHAPE) for _ in range(4))
    mask = torch.zeros(200, 200, dtype=torch.bfloat16, device="cuda")
    mask[50:] = value
    o, dq, dk, dv = with_gradients(strobe_sdpa, (q, k, v), d_o, attn_mask=mask)
    mean = v.double().mean(2, keepdim=True).expand(-1, -1, 150, -1)
    assert (o[:, :, 50:].double() - mean).abs().max() <= 2 * torch.finfo(torch.bfloat16).eps
    for gradient in (dq, dk, dv):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("factor", [1e2, 1e4, 1e9, 1e14])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_large_scores(factor, head_dim):
    """Nearly every row has one key, whose V is the result: rounded once, and its probability once."""
    q, k, v, d_o = (draw(1, 300, 2, head_dim) for _ in range(4))
    q, k = q * factor, k * factor
    found = with_gradients(strobe.torch.attention, (q, k, v), d_o)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * head_dim**-0.5
    best = scores.topk(2).values
    clear = ((best[..., 0] - best[..., 1]) > 1e-4 * best[..., 0].abs() + 40).transpose(1, 2)
    winners = v.double().transpose(1, 2).gather(2, scores.argmax(-1, keepdim=True).expand(-1, -1, -1, head_dim))
    assert clear.float().mean() > 0.5
    wanted = winners.transpose(1, 2)[clear]
    assert ((found[0][clear].double() - wanted).abs() <= torch.finfo(torch.bfloat16).eps * wanted.abs()).all()
    for gradient in found[1:]:
        assert gradient.isfinite().all()


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_checkpoints_recompute_the_same(use_reentrant, dropout_p):
    q, k, v, d_o = (draw(*SHAPE) for _ in range(4))

    def attend(*inputs):
        return strobe_sdpa(*inputs, dropout_p=dropout_p, is_causal=True)

    torch.manual_seed(3)
    wanted = with_gradients(attend, (q, k, v), d_o)
    torch.manual_seed(3)
    found = with_gradients(lambda *x: checkpoint(attend, *x, use_reentrant=use_reentrant), (q, k, v), d_o)
    for x, y in zip(found[:2], wanted[:2], strict=True):
        assert torch.equal(x, y) or (x - y).abs().max() <= 2 * torch.finfo(x.dtype).eps * y.abs().max()


def test_masks_that_are_none():
    q, k, v = (draw(*SHAPE) for _ in range(3))
    with pytest.raises(TypeError, match="attn_mask is int32"):
        strobe_sdpa(q, k, v, attn_mask=torch.ones(200, 200, dtype=torch.int32, device="cuda"))
    assert (strobe_sdpa(q, k, v, dropout_p=1.0) == 0).all()


def with_mask(q, k, v, mask):
    return strobe.torch.attention(*(x.transpose(1, 2) for x in (q, k, v)), mask=mask).transpose(1, 2)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("shape", [(2, 200), (2, 200, 200), (1, 4, 200, 200), (2, 4, 1, 200)])
def test_the_argument_mask_waits_for_nothing(shape, added):
    q, k, v, d_o = (draw(*SHAPE) for _ in range(4))
    mask = torch.rand(shape, device="cuda") < 0.5
    mask[..., 0] = True
    mask[..., 150:] = False
    whole = mask if mask.dim() == 4 else mask[:, None] if mask.dim() == 3 else mask[:, None, None]
    wanted = with_gradients(exact, [x.double() for x in (q, k, v)], d_o, attn_mask=whole)
    for x in (k, v):
        x[:, :, 150:] = math.nan
    given = torch.zeros(shape, device="cuda").masked_fill(~mask, -math.inf) if added else mask
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = with_gradients(with_mask, (q, k, v), d_o, mask=given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_near(found, wanted)
