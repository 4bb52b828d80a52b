# SPDX-License-Identifier: Apache-2.0
"""Models with heads of more than 256 columns: DeepSeek-V3, plain and absorbed, and Gemma's of 512. In float32 on the
CPU, and in bfloat16 there and on a GPU where there is one."""

import contextlib

import pytest
import strobe
import torch
import transformers
from architectures import cases, tiny
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

LATENT, NOPE, ROPE, VALUE = 512, 128, 64, 128
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module", autouse=True)
def counted():
    transformers.logging.set_verbosity_error()
    cases.count_calls()


def deepseek_v3(heads=8):
    """The columns of DeepSeek-V3's heads and latents in a small model."""
    config = tiny.configuration(
        "deepseek_v3",
        kv_lora_rank=LATENT,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        qk_head_dim=NOPE + ROPE,
        head_dim=ROPE,
        v_head_dim=VALUE,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        first_k_dense_replace=2,  # no experts, which no matrix product of float64 serves
    )
    return tiny.build(transformers.DeepseekV3ForCausalLM, config)


def expect_equal(model):
    outcomes = {name: cases.outcome(model, case) for name, case in cases.cases_of(model).items()}
    compared = {name: outcome for name, outcome in outcomes.items() if outcome[0] != "not comparable"}
    assert "no mask" in compared
    assert {outcome[0] for outcome in compared.values()} == {"equal"}, compared


def test_deepseek_v3():
    """192 columns of q and k, 128 of v."""
    expect_equal(deepseek_v3())


def gemma3():
    return tiny.model_of("gemma3_text", ["Gemma3ForCausalLM"], head_dim=512, query_pre_attn_scalar=512)


def gemma4():
    """Its global layers have heads of 512 columns."""
    model = tiny.model_of("gemma4_text", ["Gemma4ForCausalLM"], global_head_dim=512)
    assert 512 in {module.head_dim for module in model.modules() if hasattr(module, "head_dim")}
    return model


@pytest.mark.parametrize("make", [gemma3, gemma4])
def test_gemma(make):
    expect_equal(make())


@contextlib.contextmanager
def absorbed():
    """DeepSeek-V3's attention by strobe.mla: a head's part of kv_b_proj joins its queries and its output."""
    lengths = []

    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_values=None, **_):
        batch, seqlen, _ = hidden_states.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        q = q.view(batch, seqlen, -1, self.qk_head_dim).transpose(1, 2)
        q_nope, q_rope = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(hidden_states).split([self.kv_lora_rank, self.qk_rope_head_dim], -1)
        latent, k_rope = self.kv_a_layernorm(latent)[:, None], k_rope[:, None]
        rotate = deepseek.apply_rotary_pos_emb
        if self.config.rope_interleave:
            rotate = deepseek.apply_rotary_pos_emb_interleave
        q_rope, k_rope = rotate(q_rope, k_rope, *position_embeddings)
        if past_key_values is not None:
            latent, k_rope = past_key_values.update(latent, k_rope, self.layer_idx)
        weight = self.kv_b_proj.weight.view(self.num_heads, -1, self.kv_lora_rank)
        to_keys, to_values = weight.split([self.qk_nope_head_dim, self.v_head_dim], dim=1)
        cache = torch.cat([latent, k_rope], dim=-1)[:, 0]
        lengths.append((seqlen, cache.shape[1]))
        out = strobe.mla(
            torch.einsum("bhqn,hnl->bqhl", q_nope, to_keys),
            q_rope.transpose(1, 2).contiguous(),
            cache,
            scale=self.scaling,
            causal=True,
        )
        out = torch.einsum("bqhl,hvl->bqhv", out, to_values)
        return self.o_proj(out.reshape(batch, seqlen, -1)), None

    plain = deepseek.DeepseekV3Attention.forward
    deepseek.DeepseekV3Attention.forward = forward
    try:
        yield lengths
    finally:
        deepseek.DeepseekV3Attention.forward = plain


def cached_logits(model):
    """Of a prompt, several tokens behind it, and single ones."""
    ids = cases.tokens(2, 14).to(model.device)
    cache, outputs = transformers.DynamicCache(config=model.config), []
    with torch.no_grad():
        for begin, end in ((0, 9), (9, 12), (12, 13), (13, 14)):
            outputs.append(model(input_ids=ids[:, begin:end], past_key_values=cache).logits)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("heads", [8, 32])
def test_deepseek_v3_absorbed(heads):
    """Logits beside those of the plain form in float64."""
    model = deepseek_v3(heads)
    model.set_attn_implementation("eager")
    eager = cached_logits(model)
    with absorbed() as lengths:
        own = cached_logits(model)
    exact = cached_logits(model.double())
    assert lengths[::2] == [(9, 9), (3, 12), (1, 13), (1, 14)]
    largest = exact.abs().max()
    assert (eager.double() - exact).abs().max() < cases.TOLERANCE * largest
    assert (own.double() - exact).abs().max() < cases.TOLERANCE * largest


def gradients(model):
    """Of a loss over a prompt, relative to the largest."""
    ids = cases.tokens(cases.BATCH, cases.SEQLEN).to(model.device)
    logits = model(input_ids=ids).logits.double()
    (logits * torch.linspace(-1, 1, logits.shape[-1], device=model.device)).sum().backward()
    parts = torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    return parts / parts.abs().max()


def expect_as_exact_as_eager(model, function, own_attention):
    """In bfloat16 a model rounds the same results whichever attention it has, and eager attention rounds its scores
    and probabilities, too, of which Strobe rounds the probabilities alone: its distance from float64 is as large, but
    for how errors meet. Root mean squares, where that evens out, within a factor of 2; the largest ones within the
    factor for models that amplify rounding."""
    model.set_attn_implementation("eager")
    eager = function(model).double()
    before = cases.calls()
    with own_attention(model) as counted:
        own = function(model).double()
    assert counted or cases.calls() > before
    model.set_attn_implementation("eager")
    exact = function(model.double())
    errors = [(result - exact).abs() for result in (own, eager)]
    largest = [float(error.max()) for error in errors]
    mean = [float(error.square().mean().sqrt()) for error in errors]
    assert 2 * mean[1] < float(exact.square().mean().sqrt())  # what has nothing to do with it is farther away
    assert mean[0] <= 2 * mean[1], mean
    assert largest[0] <= cases.FACTOR * largest[1], largest


@contextlib.contextmanager
def by_strobe(model):
    model.set_attn_implementation("strobe")
    yield []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", [cached_logits, gradients])
@pytest.mark.parametrize("make", [deepseek_v3, gemma3, gemma4])
def test_in_bfloat16(make, function, device):
    expect_as_exact_as_eager(make().to(device, torch.bfloat16), function, by_strobe)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads", [8, 32])
def test_absorbed_in_bfloat16(heads, device):
    """Queries are rounded once more behind their part of the matrix."""
    expect_as_exact_as_eager(deepseek_v3(heads).to(device, torch.bfloat16), cached_logits, lambda _: absorbed())
