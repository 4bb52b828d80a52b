# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning and generation with transformers, Strobe beside eager: an encoder, a decoder with grouped heads, one with
sinks and windows and one with softcap; padded and packed, with attention dropout; on the CPU and on a GPU.

On the CPU everything is float32. On a GPU Strobe runs in bfloat16, and may be as far from eager's float32 as twice
eager's own bfloat16.
"""

import children
import pytest
import torch
import transformers
from strobe import dropout_mask
from strobe.integrations.transformers import register
from strobe.torch.ops import draw_random
from torch.nn import functional

LENGTHS = (37, 12, 50)
VOCABULARY, WINDOW, STEPS = 96, 9, 3
SIZE = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "max_position_embeddings": 128}
GROUPED = SIZE | HEADS | {"num_key_value_heads": 2, "head_dim": 32}


def encoder(implementation, dropout):
    config = transformers.BertConfig(
        **SIZE,
        **HEADS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=dropout,
        attn_implementation=implementation,
    )
    return transformers.BertForMaskedLM(config)


def grouped_heads(implementation, dropout):
    config = transformers.LlamaConfig(**GROUPED, attention_dropout=dropout, attn_implementation=implementation)
    return transformers.LlamaForCausalLM(config)


def sinks_and_windows(implementation, dropout):
    """Both experts are chosen for each token, so that rounding cannot choose another one."""
    config = transformers.GptOssConfig(
        **GROUPED,
        sliding_window=WINDOW,
        num_local_experts=2,
        num_experts_per_tok=2,
        initializer_range=0.1,
        attention_dropout=dropout,
        attn_implementation=implementation,
    )
    return transformers.GptOssForCausalLM(config)


def softcap(implementation, dropout):
    config = transformers.Gemma2Config(
        **GROUPED,
        sliding_window=WINDOW,
        attn_logit_softcapping=5.0,
        attention_dropout=dropout,
        attn_implementation=implementation,
    )
    return transformers.Gemma2ForCausalLM(config)


MODELS = (encoder, grouped_heads, sinks_and_windows, softcap)
DECODERS = MODELS[1:]


@pytest.fixture(scope="module", autouse=True)
def registered():
    register()


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return request.param


@pytest.fixture
def same_dropout(monkeypatch):
    """Lets eager drop what Strobe drops. Padding on the left counts as a sequence of its own, as does that behind."""

    def dropout(weights, p=0.5, training=True, inplace=False):
        if p == 0.0 or not training:
            return weights
        seed, offset = (number % 2**64 for number in draw_random(weights).tolist())
        kept = torch.zeros(weights.shape, dtype=torch.bool)
        batch, *rest = weights.shape
        drawn = torch.from_numpy(dropout_mask((3 * batch, *rest), p, seed=seed, offset=offset)).bool()[1::3]
        is_causal = weights[0, 0, -2, -1] == 0
        for row, length in enumerate(LENGTHS):
            queries = slice(length) if is_causal else slice(-length, None)
            kept[row, :, -length:, -length:] = drawn[row, :, queries, :length]
        return weights * kept.to(weights.device) / (1 - p)

    monkeypatch.setattr(functional, "dropout", dropout)


def make(build, implementation, device, dropout=0.0):
    torch.manual_seed(0)
    return build(implementation, dropout).to(device)


def sequences(device):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, VOCABULARY, (length,), generator=generator).to(device) for length in LENGTHS]


def padded_batch(device):
    """On the left, and the mask of tokens."""
    rows = [functional.pad(x, (max(LENGTHS) - len(x), 0)) for x in sequences(device)]
    ids = torch.stack(rows)
    return ids, (ids != 0).long()


def padded_logits(model, device):
    ids, mask = padded_batch(device)
    return model(input_ids=ids, attention_mask=mask).logits[mask.bool()]


def packed_logits(model, device):
    """Strobe's from one flattened batch, eager's from a call for each sequence."""
    parts = sequences(device)
    if model.config._attn_implementation != "strobe":
        return torch.cat([model(input_ids=part[None]).logits[0] for part in parts])
    cu_seqlens = torch.tensor([0, *LENGTHS], device=device).cumsum(0).int()
    positions = torch.cat([torch.arange(length, device=device) for length in LENGTHS])
    return model(
        input_ids=torch.cat(parts)[None],
        position_ids=positions[None],
        cu_seq_lens_q=cu_seqlens,
        cu_seq_lens_k=cu_seqlens,
        max_length_q=max(LENGTHS),
        max_length_k=max(LENGTHS),
    ).logits[0]


def fine_tune(model, logits_of, device, half):
    """Every parameter's change over some steps, and the losses, as one vector."""
    model.train()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = torch.cat([x.roll(-1) for x in sequences(device)])
    torch.manual_seed(2)  # of dropout
    losses = []
    for _ in range(STEPS):
        with torch.autocast(device, torch.bfloat16, enabled=half):
            loss = functional.cross_entropy(logits_of(model, device), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().float())
    changes = [(p - q).flatten() for p, q in zip(model.parameters(), before, strict=True)]
    return torch.cat([*changes, torch.stack(losses)])


def expect_as_eager(compute, device):
    """`compute(implementation, half)` gives a vector."""
    expected = compute("eager", False)
    if device == "cpu":
        torch.testing.assert_close(compute("strobe", False), expected, rtol=1e-3, atol=1e-5)
        return
    error, allowed = ((compute(name, True).float() - expected).norm() for name in ("strobe", "eager"))
    assert allowed > 0
    assert error <= 2 * allowed, f"{error / expected.norm()} of the norm, eager {allowed / expected.norm()}"


@pytest.mark.parametrize("dropout", [0.0, 0.25])  # a multiple of 1/256, which Strobe rounds to
@pytest.mark.parametrize("build", MODELS)
def test_padded_batches(build, dropout, device, same_dropout):
    expect_as_eager(
        lambda implementation, half: fine_tune(
            make(build, implementation, device, dropout), padded_logits, device, half
        ),
        device,
    )


@pytest.mark.parametrize("build", MODELS)
def test_packed_batches(build, device):
    expect_as_eager(
        lambda implementation, half: fine_tune(make(build, implementation, device), packed_logits, device, half), device
    )


@torch.no_grad()
def generated_logits(model, device, half):
    """Of each new token of a padded batch with a cache; the tokens are given, so that rounding cannot change them."""
    model.eval()
    ids, mask = padded_batch(device)
    given = torch.randint(1, VOCABULARY, (len(LENGTHS), 12), generator=torch.Generator().manual_seed(3)).to(device)
    cache, logits = None, []
    for token in (*given.split(1, dim=1), None):
        with torch.autocast(device, torch.bfloat16, enabled=half):
            out = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        logits.append(out.logits[:, -1].float().flatten())
        if token is None:
            return torch.cat(logits)
        cache, ids, mask = out.past_key_values, token, functional.pad(mask, (0, 1), value=1)
    raise AssertionError


@pytest.mark.parametrize("build", DECODERS)
def test_generation(build, device):
    expect_as_eager(
        lambda implementation, half: generated_logits(make(build, implementation, device), device, half), device
    )


@pytest.mark.parametrize("build", DECODERS)
def test_generate_chooses_the_same_tokens(build):
    ids, mask = padded_batch("cpu")
    settings = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    chosen = [
        make(build, name, "cpu").eval().generate(ids, attention_mask=mask, **settings) for name in ("strobe", "eager")
    ]
    assert torch.equal(*chosen)


class Verses(torch.utils.data.Dataset):
    """Genesis, a byte a token."""

    def __init__(self):
        printed = children.run(["bible", "-f", "gen1:1-10:32"]).stdout.encode()
        self.lines = [list(line[:96]) for line in printed.splitlines() if line]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return {"input_ids": self.lines[index]}


def collate(rows):
    most = max(len(row["input_ids"]) for row in rows)
    padded = [row["input_ids"] + [0] * (most - len(row["input_ids"])) for row in rows]
    ids = torch.tensor(padded)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.where(ids != 0, -100)}


def trainer_losses(implementation, folder, device):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**GROUPED | {"vocab_size": 256}, attn_implementation=implementation)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=15,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=0,
        use_cpu=device == "cpu",
        bf16=device == "cuda",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        transformers.LlamaForCausalLM(config), arguments, data_collator=collate, train_dataset=Verses()
    )
    trainer.train()
    return torch.tensor([x["loss"] for x in trainer.state.log_history if "loss" in x])


def test_trainer_learns_real_text(tmp_path, device):
    strobe, eager = (trainer_losses(name, tmp_path, device) for name in ("strobe", "eager"))
    assert len(strobe) == 15
    assert strobe[-1] < 0.75 * strobe[0]
    torch.testing.assert_close(strobe, eager, rtol=0, atol=1e-3 if device == "cpu" else 0.05)
