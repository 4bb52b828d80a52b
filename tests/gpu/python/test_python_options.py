# SPDX-License-Identifier: Apache-2.0
"""Training with a bias, dropout and block masks on a GPU: pytest tests/gpu/python/test_python_options.py, where PyTorch
is installed."""

import plain_attention as plain
import pytest
import strobe
import strobe.torch
import torch
from test_python_gradients import BF16, check, draw, draw_call


@pytest.mark.parametrize("head_dim", [128, 256])
@pytest.mark.parametrize("shape", [(2, 4), (1, 4), (1, 1)])
def test_bias(head_dim, shape):
    bias = draw(*shape, 333, 400, dtype=torch.float32)
    check(
        lambda q, k, v, bias: (strobe.torch.attention(q, k, v, bias=bias.float()),),
        lambda q, k, v, bias: plain.attention(q, k, v, bias=bias)[:1],
        (*draw_call(2, 333, 400, 4, 2, head_dim, head_dim), bias),
        BF16,
    )


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_dropout(head_dim):
    random = {"dropout": 0.2, "seed": 5, "offset": 7}
    kept = torch.from_numpy(strobe.dropout_mask((2, 4, 333, 333), **random)).cuda()
    factors = kept / (1 - round(0.2 * 256) / 256)
    check(
        lambda *x: (strobe.torch.attention(*x, causal=True, **random),),
        lambda *x: plain.attention(*x, causal=True, kept=factors)[:1],
        draw_call(2, 333, 333, 4, 2, head_dim, head_dim),
        BF16,
    )


@pytest.mark.parametrize("block_size", [64, 128])
def test_block_mask(block_size):
    mask = strobe.local_block_mask(700, 700, left=1, right=0, block_size=block_size)
    visible = torch.from_numpy(mask).cuda().bool()
    visible = visible.repeat_interleave(block_size, -1).repeat_interleave(block_size, -2)[..., :700, :700]
    hidden = torch.zeros(visible.shape, device="cuda").masked_fill(~visible, float("-inf"))
    check(
        lambda *x: (strobe.torch.attention(*x, block_mask=torch.from_numpy(mask).cuda(), block_size=block_size),),
        lambda *x: plain.attention(*x, bias=hidden)[:1],
        draw_call(2, 700, 700, 4, 2, 128, 128),
        BF16,
    )


@pytest.mark.parametrize("head_dim", [64, 128])
def test_row_invariant(head_dim):
    q, k, v = (x.detach() for x in draw_call(1, 2100, 2100, 4, 2, head_dim, head_dim))
    prompt = strobe.attention(q, k, v, causal=True, row_invariant=True)
    for row in (0, 5, 64, 700, 2047, 2048, 2099):
        decode = strobe.attention(
            q[:, row : row + 1], k[:, : row + 1], v[:, : row + 1], causal=True, row_invariant=True
        )
        assert torch.equal(decode, prompt[:, row : row + 1])
