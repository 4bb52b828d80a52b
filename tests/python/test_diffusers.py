# SPDX-License-Identifier: Apache-2.0
"""The attention backend of diffusers, in tiny transformers with random weights, against PyTorch's."""

import diffusers
import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend, dispatch_attention_fn
from strobe.integrations import diffusers as integration


@pytest.fixture
def flux():
    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    inputs = {
        "hidden_states": torch.randn(2, 16, 4),
        "encoder_hidden_states": torch.randn(2, 24, 32),
        "pooled_projections": torch.randn(2, 32),
        "img_ids": torch.randint(0, 4, (16, 3)).float(),
        "txt_ids": torch.zeros(24, 3),
        "timestep": torch.tensor([0.3, 0.7]),
    }
    return model, inputs


def output_and_gradients(model, inputs):
    model.zero_grad()
    out = model(**inputs, return_dict=False)[0]
    out.square().sum().backward()
    return out.detach(), [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.fixture
def calls(monkeypatch):
    """The query of every call that reaches Strobe by PyTorch's function."""
    from strobe.torch import sdpa

    seen, compute = [], sdpa.__torch_function__

    def count(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.scaled_dot_product_attention:
            seen.append(args[0].shape)
        return compute(self, func, types, args, kwargs)

    monkeypatch.setattr(sdpa, "__torch_function__", count)
    return seen


def test_transformer_and_its_gradients_are_those_of_pytorch(flux, calls):
    model, inputs = flux
    wanted, wanted_gradients = output_and_gradients(model, inputs)
    assert not calls
    model.set_attention_backend("strobe")
    out, gradients = output_and_gradients(model, inputs)
    assert calls == [(2, 2, 40, 16)] * 4
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
    assert len(gradients) == len(wanted_gradients) > 50
    for gradient, wanted_gradient in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted_gradient, atol=1e-3, rtol=1e-3)


def test_a_context_chooses_the_backend_for_all_models(flux, calls):
    model, inputs = flux
    with torch.no_grad(), attention_backend("strobe"):
        model(**inputs)
    assert len(calls) == 4


@pytest.mark.parametrize("shape", [(2, 9), (2, 1, 7, 9), (2, 4, 7, 9)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks(shape, dtype):
    torch.manual_seed(1)
    q, k, v = torch.randn(2, 7, 4, 32), torch.randn(2, 9, 4, 32), torch.randn(2, 9, 4, 32)
    mask = torch.rand(shape) < 0.6 if dtype == torch.bool else torch.randn(shape)
    mask[..., 0] = True if dtype == torch.bool else 0.0
    ours, theirs = (
        dispatch_attention_fn(q, k, v, attn_mask=mask, scale=0.2, backend=name) for name in ("strobe", "native")
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_grouped_heads_and_causal_masks():
    torch.manual_seed(2)
    q, k, v = torch.randn(2, 8, 6, 32), torch.randn(2, 8, 2, 32), torch.randn(2, 8, 2, 32)
    ours, theirs = (
        dispatch_attention_fn(q, k, v, is_causal=True, enable_gqa=True, backend=name) for name in ("strobe", "native")
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_registering_again_changes_nothing():
    names = list(AttentionBackendName)
    integration.register()
    assert list(AttentionBackendName) == names
    assert names.count(AttentionBackendName("strobe")) == 1


def test_context_parallelism_is_refused():
    q = torch.randn(1, 4, 2, 16)
    with pytest.raises(NotImplementedError, match="context parallelism is enabled"):
        dispatch_attention_fn(q, q, q, backend="strobe", parallel_config=object())
