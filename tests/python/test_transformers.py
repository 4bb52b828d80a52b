# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="strobe" beside "sdpa" and "eager": a trained encoder, small decoders, generation."""

from pathlib import Path

import children
import pytest
import torch
import transformers
from strobe.integrations.transformers import compute, register

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = [
    "The LORD is my shepherd; I shall not want.",
    "In the beginning God created the heaven and the earth.",
    "Jesus wept.",
    "To every thing there is a season, and a time to every purpose under the heaven: a time to be born, and a time to "
    "die; a time to plant, and a time to pluck up that which is planted;",
]


@pytest.fixture(scope="module", autouse=True)
def registered():
    register()


@pytest.fixture(scope="module")
def minilm():
    children.run([ROOT / "scripts" / "fetch-model.sh"])
    return ROOT / "build" / "models" / "all-MiniLM-L6-v2"


def embed(folder, implementation):
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=True)
    model = transformers.BertModel.from_pretrained(folder, attn_implementation=implementation).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        tokens = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1))


def test_trained_encoder(minilm):
    """The batch is padded: sentences of 6 to 45 tokens."""
    strobe = embed(minilm, "strobe")
    for implementation in ("sdpa", "eager"):
        torch.testing.assert_close(strobe, embed(minilm, implementation), rtol=0, atol=2e-6)
    assert (strobe @ strobe.T).fill_diagonal_(0).max() < 0.9


def llama(implementation, **settings):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        attn_implementation=implementation,
        **settings,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def padded():
    """Padded on the left, as batches to be continued are."""
    ids = torch.randint(3, 100, (3, 14), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, length in enumerate((14, 5, 9)):
        mask[row, : 14 - length] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("with_padding", [False, True])
def test_decoder(padded, with_padding):
    inputs = padded if with_padding else {"input_ids": padded["input_ids"]}
    kept = inputs.get("attention_mask", torch.ones(3, 14)).bool()
    with torch.no_grad():
        logits = {name: llama(name)(**inputs).logits[kept] for name in ("strobe", "sdpa", "eager")}
    torch.testing.assert_close(logits["strobe"], logits["sdpa"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits["strobe"], logits["eager"], rtol=1e-4, atol=1e-5)


def test_sliding_window(padded):
    def logits(implementation):
        torch.manual_seed(0)
        config = transformers.MistralConfig(
            vocab_size=100,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=4,
            attn_implementation=implementation,
        )
        with torch.no_grad():
            return transformers.MistralForCausalLM(config).eval()(input_ids=padded["input_ids"]).logits

    torch.testing.assert_close(logits("strobe"), logits("eager"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("with_padding", [False, True])
@pytest.mark.parametrize("cache", [None, "static"])
def test_generation_with_a_cache(padded, cache, with_padding):
    """Without padding no mask says which rows of a static cache are tokens."""
    inputs = padded if with_padding else {"input_ids": padded["input_ids"].clamp(min=3)}

    def generate(implementation):
        settings = {} if cache is None else {"cache_implementation": cache}
        return llama(implementation).generate(
            **inputs, max_new_tokens=12, do_sample=False, pad_token_id=0, disable_compile=True, **settings
        )

    assert torch.equal(generate("strobe"), generate("eager"))


def test_a_decode_reads_its_cache_in_place(padded, monkeypatch):
    """Left padding and room behind the tokens: nothing is packed, and no bias is read."""
    monkeypatch.setattr(compute, "_on_packed", None)
    monkeypatch.setattr(compute, "_as_bias", None)
    test_generation_with_a_cache(padded, "static", True)
    test_generation_with_a_cache(padded, None, True)


def test_training():
    gradients = {}
    for implementation in ("strobe", "eager"):
        model = llama(implementation).train()
        ids = torch.randint(3, 100, (2, 20), generator=torch.Generator().manual_seed(2))
        model(input_ids=ids, labels=ids).loss.backward()
        gradients[implementation] = [p.grad for p in model.parameters()]
    for a, b in zip(gradients["strobe"], gradients["eager"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_custom_mask(padded):
    """A mask of four axes is a bias."""
    ids = padded["input_ids"]
    visible = torch.ones(14, 14, dtype=torch.bool).tril() & (torch.arange(14) % 3 != 1)
    visible |= torch.eye(14, dtype=torch.bool)
    mask = torch.zeros(3, 1, 14, 14).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad():
        a, b = (llama(name)(input_ids=ids, attention_mask=mask).logits for name in ("strobe", "eager"))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_packed_sentences_embed_as_padded_ones(minilm, monkeypatch):
    """What the demo does on a GPU, here on the CPU: batches of 64 tokens without padding, beside PyTorch's with it."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "sentence_search"))
    import gpu_encoder

    tokenizer = transformers.BertTokenizer(str(minilm / "vocab.txt"), do_lower_case=True)
    sentences = tokenizer(SENTENCES)["input_ids"]
    embeddings = {
        implementation: gpu_encoder.encode(
            gpu_encoder.load(minilm, implementation, "cpu", torch.float32), sentences, 64, padded
        )
        for implementation, padded in (("strobe", False), ("sdpa", True))
    }
    assert abs(embeddings["strobe"] - embeddings["sdpa"]).max() < 2e-6
