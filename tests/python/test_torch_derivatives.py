# SPDX-License-Identifier: Apache-2.0
"""Derivatives that attention does not have are errors, and masks mean what they say."""

import pytest
import strobe.torch
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("name", ["alibi_slopes", "softcap"])
def test_factors_with_gradients_raise(name):
    x = draw(1, 10, 2, 16)
    factor = torch.nn.Parameter(torch.tensor(0.5))
    with pytest.raises(NotImplementedError, match=f"{name} requires a gradient"):
        strobe.torch.attention(x, x, x, **{name: factor})


@pytest.mark.parametrize("mask", [causal_upper_left, causal_lower_right])
def test_causal_biases(mask):
    q, k, v = draw(2, 4, 12, 16), draw(2, 4, 20, 16), draw(2, 4, 20, 16)
    wanted = scaled_dot_product_attention(q, k, v, attn_mask=mask(12, 20))
    with strobe.torch.sdpa():
        result = scaled_dot_product_attention(q, k, v, attn_mask=mask(12, 20))
    assert torch.allclose(result, wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integer_masks_raise(dtype):
    x = draw(1, 2, 8, 16)
    with strobe.torch.sdpa(), pytest.raises(TypeError, match="it must be bool or floating point"):
        scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(8, 8, dtype=dtype))


def test_fallback_of_what_strobe_does_not_take():
    x = draw(1, 2, 8, 16).double()
    with strobe.torch.sdpa(fallback=True):
        result = scaled_dot_product_attention(x, x, x)
    assert torch.equal(result, scaled_dot_product_attention(x, x, x))
