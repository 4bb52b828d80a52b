# SPDX-License-Identifier: Apache-2.0
"""Tiny models with MLA, served by vLLM on Strobe and on vLLM's own CPU backend: the same greedy tokens."""

from functools import cache

import pytest
import torch
from chunking_scheduler import MOST_TOKENS
from compare import DRAFTS, check_cached, check_first_tokens, check_other, check_same
from generate import prompts
from models import MLA_CONFIGS, WITHOUT_EXPERTS
from runs import generate
from transformers import AutoModelForCausalLM

OURS, OURS_OF_PROMPTS, BROKEN = "StrobeMLAImpl", "StrobeMLAPrefill", "MLAImplementation"
OWN, OWN_OF_PROMPTS = {"CPUMLAImpl", "AMXMLAImpl"}, "CPUSDPAMLAPrefillBackend"
ROTATIONS = {"compilation_config": {"custom_ops": ["-rotary_embedding"]}}
"""By PyTorch: the kernel that vLLM 0.32 has for CPUs gives queries of several heads and keys inside longer rows, which
layers of MLA have, other angles or none."""
CHUNKS = {"scheduler_cls": "chunking_scheduler.Scheduler", "async_scheduling": False}
"""Prompts are cut, and found in the cache in a second turn."""


@pytest.fixture(scope="session")
def own(model):
    """Runs on vLLM's own backend, once each."""
    return cache(lambda name, sharpness=3.0: serve(model(name, sharpness), "own", {}))


def serve(model, backend, engine, **settings):
    return generate(model, backend, engine=ROTATIONS | engine, **settings)


def check_run(ours, own):
    assert (ours["implementations"], ours["prefills"]) == ([OURS], [OURS_OF_PROMPTS])
    assert set(own["implementations"]) <= OWN
    assert own["prefills"] == [OWN_OF_PROMPTS]
    check_same(ours, own)


@pytest.mark.parametrize("name", MLA_CONFIGS)
def test_tokens_are_those_of_the_own_backend(model, own, name):
    """In steps of whole prompts."""
    check_run(serve(model(name), "strobe", {}), own(name))


@pytest.mark.parametrize("name", MLA_CONFIGS)
def test_prompts_in_chunks_and_from_the_cache(model, own, name):
    ours = serve(model(name), "strobe", CHUNKS)
    check_cached(ours)
    check_run(ours, own(name))
    assert sum(len(prompt) > MOST_TOKENS for prompt in prompts()) > 3


@pytest.mark.parametrize("name", MLA_CONFIGS)
def test_first_tokens_are_those_of_transformers(model, own, name):
    whole = AutoModelForCausalLM.from_pretrained(model(name), dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = [int(whole(torch.tensor([prompt])).logits[0, -1].argmax()) for prompt in prompts()]
    assert [tokens[0] for tokens in own(name)["tokens"][0]] == wanted


def test_a_broken_backend_gives_other_tokens(model, own):
    broken = serve(model("deepseek_v3"), "zeros", {})
    assert broken["implementations"] == [BROKEN]
    check_other(broken, own("deepseek_v3"))


def test_speculative_decoding(model, own):
    ours = serve(model("deepseek_v3"), "strobe", CHUNKS | {"speculative_config": DRAFTS})
    check_run(ours, own("deepseek_v3"))


def test_compiled_models(model, own):
    """Attention is an opaque operator of the graph that vLLM compiles."""
    ours = serve(model("deepseek_v3"), "strobe", CHUNKS | {"enforce_eager": False})
    check_run(ours, own("deepseek_v3"))


def test_bfloat16(model, own):
    """The first tokens of a model that amplifies rounding little, without experts to choose, are those of float32."""
    folder = model(WITHOUT_EXPERTS, 1.0)
    ours = serve(folder, "strobe", CHUNKS | {"dtype": "bfloat16"}, tokens=1)
    check_first_tokens(ours, own(WITHOUT_EXPERTS, 1.0), least=13, bound=0.05)


def test_8_bits(model, own):
    """Contexts of prompts, in chunks and found again, and a decode read the cache. 12 of 13 were the same."""
    ours = serve(model(WITHOUT_EXPERTS, 1.0), "strobe", CHUNKS | {"kv_cache_dtype": "fp8"}, tokens=2)
    check_cached(ours)
    check_first_tokens(ours, own(WITHOUT_EXPERTS, 1.0), least=10, bound=0.25, count=2)
