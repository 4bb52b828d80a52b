# SPDX-License-Identifier: Apache-2.0
"""Models of transformers train on a GPU: pytest scripts/gpu/test_training.py, where PyTorch and transformers are."""

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


def losses_with(implementation, padded):
    """Of each step, from the same weights and on the same batches: sequences that count in steps of their own."""
    model = model_with(implementation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        starts, strides = (torch.randint(1, 4, (4, 1), generator=generator) for _ in range(2))
        tokens = ((starts + strides * torch.arange(300)) % VOCABULARY).cuda()
        mask = torch.ones_like(tokens)
        if padded:
            mask[1, :77] = mask[3, :200] = 0
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, attention_mask=mask, labels=tokens.where(mask.bool(), -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


@pytest.mark.parametrize("padded", [False, True])
def test_transformers_learn_alike(padded):
    """The losses lie as close to sdpa's as eager's do, which computes the same in another order."""
    from strobe.integrations.transformers import register

    register()
    sdpa, eager, ours = (losses_with(name, padded) for name in ("sdpa", "eager", "strobe"))
    difference, peer = ((x - sdpa).abs().max().item() for x in (ours, eager))
    print(f"\nlosses from {ours[0]:.3f} to {ours[-1]:.3f}: {difference:.1e} from sdpa's, where eager's are {peer:.1e}")
    assert ours[-1] < ours[0] / 2
    assert difference <= 2 * peer
