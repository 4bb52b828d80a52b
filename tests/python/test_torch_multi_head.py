# SPDX-License-Identifier: Apache-2.0
"""nn.MultiheadAttention and what is built of it compute their attention by Strobe under sdpa()."""

import copy

import pytest
import strobe.torch
import torch
from torch import nn
from torch.autograd.profiler import profile

PADDING = torch.arange(9) >= torch.tensor([[9], [4], [7]])
LAYER = {"d_model": 32, "nhead": 4, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True}
BY_PYTORCH = ("aten::scaled_dot_product", "aten::_native_multi_head", "aten::_transformer_encoder", "aten::_softmax")


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def multi_head(**arguments):
    class Heads(nn.MultiheadAttention):
        def forward(self, x, memory, **masks):
            return super().forward(x, memory, memory, need_weights=False, **masks)[0]

    return Heads(32, 4, batch_first=True, **arguments)


# name: (module, layers of attention, masks)
CASES = {
    "heads": (multi_head, 1, {}),
    "heads, padding": (multi_head, 1, {"key_padding_mask": PADDING}),
    "heads, mask": (multi_head, 1, {"attn_mask": torch.ones(9, 9).triu(1).bool()}),
    "heads, both": (multi_head, 1, {"key_padding_mask": PADDING, "attn_mask": torch.ones(9, 9).triu(1).bool()}),
    "heads, more keys": (lambda: multi_head(add_bias_kv=True, add_zero_attn=True), 1, {"key_padding_mask": PADDING}),
    "transformer": (
        lambda: nn.Transformer(32, 4, 2, 1, 64, dropout=0.0, batch_first=True),
        4,
        {"src_key_padding_mask": PADDING, "memory_key_padding_mask": PADDING, "tgt_is_causal": True}
        | {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(9)},
    ),
}


def computations(tensor):
    """How often Strobe's attention is on the tape of `tensor`."""
    nodes, seen = [tensor.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [parent for parent, _ in node.next_functions]
    return sum(node.name() == "StrobeAttentionBackward" for node in seen)


def with_gradients(module, inputs, masks):
    out = module(*inputs, **masks)
    leaves = [*inputs, *module.parameters()]
    return out, torch.autograd.grad((out * torch.linspace(-1, 1, out.shape[-1])).sum(), leaves)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case, training):
    make, layers, masks = CASES[case]
    torch.manual_seed(0)
    module = make().train(training)
    inputs = [draw(3, 9, 32, seed=seed).requires_grad_() for seed in range(2)]
    exact, exact_gradients = with_gradients(
        copy.deepcopy(module).double(),
        [x.detach().double().requires_grad_() for x in inputs],
        {name: mask.double() if name == "tgt_mask" else mask for name, mask in masks.items()},
    )
    with strobe.torch.sdpa():
        out, gradients = with_gradients(module, inputs, masks)
    assert computations(out) == layers
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=2e-5)
    for gradient, wanted in zip(gradients, exact_gradients, strict=True):
        torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=1e-4)
    with strobe.torch.sdpa(), torch.no_grad(), profile() as profiled:
        inferred = module(*inputs, **masks)
    assert not [event.name for event in profiled.function_events if event.name.startswith(BY_PYTORCH)]
    torch.testing.assert_close(inferred, out, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_an_encoder(training):
    """Without nested tensors, which PyTorch's fast path makes: rows of padding are computed, too."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**LAYER), 3, enable_nested_tensor=False).train(training)
    x = draw(3, 9, 32)
    exact = copy.deepcopy(encoder).double()(x.double(), src_key_padding_mask=PADDING)
    with strobe.torch.sdpa():
        out = encoder(x, src_key_padding_mask=PADDING)
        with torch.no_grad(), profile() as profiled:
            inferred = encoder(x, src_key_padding_mask=PADDING)
    assert computations(out) == 3
    assert not [event.name for event in profiled.function_events if event.name.startswith(BY_PYTORCH)]
    for result in (out, inferred):
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("masks", [{}, {"key_padding_mask": PADDING}])
def test_compiled(masks):
    torch.manual_seed(0)
    module = multi_head()
    x = draw(3, 9, 32)
    with strobe.torch.sdpa():
        wanted = module(x, x, **masks)
        result = torch.compile(module, fullgraph=True, backend="aot_eager")(x, x, **masks)
    assert torch.equal(result, wanted)


def test_other_modes_are_seen():
    module = multi_head()
    x = draw(3, 9, 32)
    with torch.device("cpu"), strobe.torch.sdpa():
        assert computations(module(x, x)) == 1
    with strobe.torch.sdpa(), torch.device("cpu"):
        assert computations(module(x, x)) == 1


def test_what_pytorch_computes():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(32, 4, batch_first=True)
    x = draw(3, 9, 32)
    wanted = module(x, x, x)
    with strobe.torch.sdpa():
        out, weights = module(x, x, x)
    assert computations(out) == 0
    assert torch.equal(out, wanted[0]) and torch.equal(weights, wanted[1])
    with strobe.torch.sdpa(), pytest.raises(AssertionError, match=r"key_padding_mask has shape \[2, 9\]"):
        module(x, x, x, key_padding_mask=PADDING[:2], need_weights=False)
    double = copy.deepcopy(module).double()
    with strobe.torch.sdpa(fallback=True):
        out = double(*[x.double()] * 3, need_weights=False)[0]
    assert computations(out) == 0
    torch.testing.assert_close(out, wanted[0].double(), rtol=1e-5, atol=1e-5)
