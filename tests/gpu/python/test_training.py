# SPDX-License-Identifier: Apache-2.0
"""Models of transformers train on a GPU: pytest tests/gpu/python/test_training.py, where
PyTorch and transformers are."""

import pytest
import torch

STEPS = 20
VOCABULARY = 64


def model_with(implementation):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        attn_implementation=implementation,
    )
    with torch.device("cuda"):
        return LlamaForCausalLM(config)


def batches(padded):
    """(tokens, mask, labels) of each step: sequences that count in steps of their own, which a model can learn."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        starts, strides = (torch.randint(1, 4, (4, 1), generator=generator) for _ in range(2))
        tokens = ((starts + strides * torch.arange(300)) % VOCABULARY).cuda()
        mask = torch.ones_like(tokens)
        if padded:
            mask[1, :77] = mask[3, :200] = 0
        follows = torch.nn.functional.pad(mask[:, :-1], (1, 0))  # what padding predicts is up to the implementation
        yield tokens, mask, tokens.where((mask * follows).bool(), -100)


def train(implementation, padded, half):
    """The first step's gradients and every step's loss, from the same weights; `half`: in bfloat16."""
    model = model_with(implementation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    losses, first = [], None
    for tokens, mask, labels in batches(padded):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        first = first or [x.grad.clone() for x in model.parameters()]
        optimizer.step()
        losses.append(loss.item())
    return torch.cat([x.flatten() for x in first]), torch.tensor(losses)


@pytest.mark.parametrize("padded", [False, True])
def test_transformers_learn_alike(padded):
    """In bfloat16 the gradients and losses are no farther from float32's than PyTorch's own attentions have them."""
    from strobe.integrations.transformers import register

    register()
    exact, curve = train("eager", padded, half=False)
    errors = {}
    for name in ("sdpa", "eager", "strobe"):
        gradient, losses = train(name, padded, half=True)
        errors[name] = ((gradient - exact).norm() / exact.norm()).item(), (losses - curve).abs().max().item()
    print(f"\nlosses from {losses[0]:.3f} to {losses[-1]:.3f}; errors of gradients and losses: {errors}")
    assert losses[-1] < losses[0] / 2
    ours = errors.pop("strobe")
    assert ours[0] <= 1.1 * max(gradient for gradient, _ in errors.values())
    assert ours[1] <= 2 * max(loss for _, loss in errors.values())
