# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing under sdpa(): both passes are Strobe's, with one dropout mask."""

import functools

import pytest
import strobe.torch
import torch
import torch.utils.checkpoint
from torch.nn.functional import scaled_dot_product_attention


def draw(seed):
    return torch.randn(1, 2, 24, 8, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def gradients(run, backward_inside):
    inputs = [draw(seed) for seed in range(3)]
    torch.manual_seed(1)
    with strobe.torch.sdpa():
        out = run(*inputs)
        loss = (out * draw(3).detach()).sum()
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    return [out.detach(), *(x.grad for x in inputs)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("backward_inside", [False, True])
def test_gradients_are_those_without_a_checkpoint(dropout, reentrant, backward_inside):
    attend = functools.partial(scaled_dot_product_attention, dropout_p=dropout)
    bound_before = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=reentrant)
    calls = []

    def counted(*qkv):
        calls.append(qkv)
        return attend(*qkv)

    wanted = gradients(attend, backward_inside)
    results = gradients(functools.partial(bound_before, counted), backward_inside)
    assert len(calls) == 2
    for result, exact in zip(results, wanted, strict=True):
        assert torch.equal(result, exact)


def test_pytorch_has_its_own_back_afterwards():
    before = torch.utils.checkpoint.CheckpointFunction
    with strobe.torch.sdpa(), strobe.torch.sdpa(fallback=True):
        assert torch.utils.checkpoint.CheckpointFunction is not before
    assert torch.utils.checkpoint.CheckpointFunction is before


def test_dropout_of_everything():
    q, k, v = (draw(seed) for seed in range(3))
    with strobe.torch.sdpa():
        out = scaled_dot_product_attention(q, k, v, dropout_p=1.0)
    out.sum().backward()
    assert not out.any()
    assert not any(x.grad.any() for x in (q, k, v))


def test_a_mask_under_autocast():
    q, k, v = (draw(seed).detach().half() for seed in range(3))
    mask = torch.zeros(24, 24, dtype=torch.float16).masked_fill(torch.ones(24, 24).triu(1).bool(), float("-inf"))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        with strobe.torch.sdpa():
            result = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), wanted.float(), rtol=2e-2, atol=2e-2)


def test_views_of_the_negative():
    q, k, v = (draw(seed).detach().transpose(1, 2) for seed in range(3))
    result = strobe.torch.attention(torch._neg_view(q), k, v)
    assert torch.equal(result, strobe.torch.attention(-q, k, v))
