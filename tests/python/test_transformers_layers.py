# SPDX-License-Identifier: Apache-2.0
"""What a layer of transformers gives attn_implementation="strobe": masks, keywords, bounds; and what compilers make."""

import importlib
from types import SimpleNamespace

import pytest
import strobe.integrations.transformers
import torch
import transformers
from strobe.integrations.transformers import masks
from strobe.integrations.transformers.attention import attend
from strobe.integrations.transformers.mask import Kind, Mask
from strobe.integrations.transformers.masks import make_mask
from transformers import masking_utils

BATCH, SEQLEN, HEADS, HEAD_DIM = 2, 9, 2, 8
MODULE = SimpleNamespace(is_causal=True)
SMALL = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


def tensors():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(BATCH, HEADS, SEQLEN, HEAD_DIM, generator=generator) for _ in range(3)]


def padding():
    mask = torch.ones(BATCH, SEQLEN, dtype=torch.bool)
    mask[1, :4] = False
    return mask


def causal_mask(**changes):
    call = {"batch_size": BATCH, "q_length": SEQLEN, "kv_length": SEQLEN, "attention_mask": padding()}
    return make_mask(**call | {"mask_function": masking_utils.causal_mask_function} | changes)


def expected(visible=None, bias=0.0):
    q, k, v = tensors()
    scores = q @ k.mT * HEAD_DIM**-0.5 + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return (torch.softmax(scores, -1).nan_to_num(0.0) @ v).transpose(1, 2)


def test_what_a_model_writes_into_its_mask_counts():
    """Also what it writes into a part of it, and in inference mode."""
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            mask = causal_mask()
            assert isinstance(mask, Mask)
            mask[:, :, 2:, 0] = torch.finfo(torch.float32).min
            visible = torch.ones(SEQLEN, SEQLEN, dtype=torch.bool).tril() & padding()[:, None, None, :]
            visible[:, :, 2:, 0] = False
            o = attend(MODULE, *tensors(), mask)[0]
            rows = visible[:, 0].any(-1)
            torch.testing.assert_close(o[rows], expected(visible)[rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["head_mask", "block_indices", "indices", "cache", "sinks", "an_option_of_tomorrow"])
def test_keywords_without_a_meaning_here_are_refused(name):
    with pytest.raises(NotImplementedError, match=name):
        attend(MODULE, *tensors(), None, **{name: torch.ones(1)})
    attend(MODULE, *tensors(), None, **{name: None})


def test_attention_weights_are_refused():
    with pytest.raises(NotImplementedError, match="no attention weights"):
        attend(MODULE, *tensors(), None, output_attentions=True)


def test_an_integer_mask_is_refused():
    with pytest.raises(TypeError, match="attention_mask is int64"):
        attend(MODULE, *tensors(), torch.ones(BATCH, 1, SEQLEN, SEQLEN, dtype=torch.int64))


def test_bounds_beside_padding_are_refused():
    bounds = torch.tensor([0, 4, SEQLEN])
    with pytest.raises(NotImplementedError, match="cu_seq_lens_q and a mask"):
        attend(MODULE, *tensors(), causal_mask(), cu_seq_lens_q=bounds, cu_seq_lens_k=bounds)


def test_a_position_bias_has_a_gradient():
    bias = torch.randn(1, HEADS, SEQLEN, SEQLEN, generator=torch.Generator().manual_seed(4)).requires_grad_()
    visible = torch.ones(SEQLEN, SEQLEN, dtype=torch.bool).tril() & padding()[:, None, None, :]
    o, wanted = attend(MODULE, *tensors(), causal_mask(), position_bias=bias)[0], expected(visible, bias)
    torch.testing.assert_close(o, wanted, rtol=1e-5, atol=1e-5)
    rows = padding()[..., None, None]
    (gradient,), (wanted_gradient,) = (torch.autograd.grad((x * rows).sum(), bias) for x in (o, wanted))
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-4, atol=1e-5)


def test_a_learnt_scale_of_each_head_has_a_gradient():
    scale = torch.tensor([0.3, 0.5], requires_grad=True)
    q, k, v = tensors()
    visible = torch.ones(SEQLEN, SEQLEN, dtype=torch.bool).tril() & padding()[:, None, None, :]
    scores = q @ k.mT * scale.view(-1, 1, 1)
    wanted = (scores.masked_fill(~visible, -1e9).softmax(-1) @ v).transpose(1, 2)
    rows = padding()[..., None, None]
    (exact,) = torch.autograd.grad((wanted.sin() * rows).sum(), scale)
    o = attend(MODULE, q, k, v, causal_mask(), scaling=scale)[0]
    torch.testing.assert_close(o[padding()], wanted[padding()], rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad((o.sin() * rows).sum(), scale)
    torch.testing.assert_close(gradient, exact, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(attend(MODULE, q, k, v, causal_mask(), scaling=scale)[0], o, rtol=1e-5, atol=1e-5)


def test_without_a_mask_all_keys_are_seen():
    """As "eager" has it, whatever the module says."""
    torch.testing.assert_close(attend(MODULE, *tensors(), None)[0], expected(), rtol=1e-5, atol=1e-5)


def test_a_padded_causal_mask_takes_no_memory_for_queries_and_keys():
    for tokens in (padding(), padding().flip(1)):
        mask = causal_mask(attention_mask=tokens)
        attend(MODULE, *tensors(), mask)
        assert mask.plan.kind in (Kind.RUN, Kind.USED)
        assert mask._dense is None


def model_of(kind):
    torch.manual_seed(0)
    if kind == "encoder":
        return transformers.BertModel(transformers.BertConfig(num_hidden_layers=2, **SMALL)).eval()
    window = {"sliding_window": 4} if kind == "window" else {}
    config = transformers.MistralConfig if window else transformers.LlamaConfig
    model = transformers.MistralForCausalLM if window else transformers.LlamaForCausalLM
    return model(config(num_hidden_layers=2, num_key_value_heads=2, **SMALL, **window)).eval()


def outputs(model, call, tokens=None):
    tokens = padding() if tokens is None else tokens
    ids = torch.randint(3, 100, (BATCH, SEQLEN), generator=torch.Generator().manual_seed(5))
    keywords = {} if isinstance(model, transformers.BertModel) else {"use_cache": False}
    return call(input_ids=ids, attention_mask=tokens.long(), **keywords)[0][tokens]


def test_the_import_registers():
    del transformers.AttentionInterface._global_mapping["strobe"]
    importlib.reload(strobe.integrations.transformers)
    assert "strobe" in transformers.AttentionInterface._global_mapping


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", ["decoder", "window", "encoder"])
def test_a_padded_model_compiles_without_a_break(kind, whole):
    """As a whole, or layer by layer; padded on the left, and on the right."""
    model = model_of(kind)
    model.set_attn_implementation("eager")
    sides = padding(), padding().flip(1)
    with torch.no_grad():
        wanted = [outputs(model, model, tokens) for tokens in sides]
    model.set_attn_implementation("strobe")
    call = model
    if whole:
        call = torch.compile(model, backend="aot_eager", fullgraph=True)
    else:
        for layer in model.encoder.layer if kind == "encoder" else model.model.layers:
            layer.compile(backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for tokens, exact in zip(sides, wanted, strict=True):
            torch.testing.assert_close(outputs(model, call, tokens), exact, rtol=1e-4, atol=1e-5)


def test_a_mask_function_is_read_once_a_forward(monkeypatch):
    calls = []
    original = masks.recognise
    monkeypatch.setattr(masks, "recognise", lambda function: (calls.append(function), original(function))[1])
    model = model_of("window")
    model.set_attn_implementation("strobe")
    with torch.no_grad():
        outputs(model, model)
    assert len(calls) == 1
