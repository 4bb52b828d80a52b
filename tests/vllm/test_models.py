# SPDX-License-Identifier: Apache-2.0
"""Tiny models of several families, served by vLLM on Strobe and on vLLM's own CPU backend: the same greedy tokens.

Chunked prefill and prefix caching are on; the second turn of a run finds its prompts in the cache.
"""

from functools import cache

import pytest
from models import CONFIGS, make
from runs import ENGINE, HERE, generate

OURS, OWN, BROKEN = "StrobeAttentionImpl", "CPUAttentionBackendImpl", "Implementation"


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return cache(lambda name: make(name, folder, HERE.parents[1] / "docs" / "algorithm.md"))


@pytest.fixture(scope="session")
def own(model):
    """Runs on vLLM's own backend, once each."""
    return cache(lambda name: generate(model(name), "own"))


def check_same(ours, own):
    assert (ours["implementations"], own["implementations"]) == ([OURS], [OWN])
    assert ours["tokens"] == own["tokens"]
    assert min(ours["cached"][4:]) > 0  # of the prompts that fill a block
    difference = max(
        abs(x - y)
        for turns in zip(ours["logprobs"], own["logprobs"], strict=True)
        for prompts in zip(*turns, strict=True)
        for x, y in zip(*prompts, strict=True)
    )
    assert difference < 1e-3
    print(f"log-probabilities within {difference:.1e}")


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_those_of_the_own_backend(model, own, name):
    check_same(generate(model(name), "strobe"), own(name))


def test_a_broken_backend_gives_other_tokens(model, own):
    broken = generate(model("llama"), "zeros")
    assert broken["implementations"] == [BROKEN]
    assert not [a for a, b in zip(broken["tokens"][0], own("llama")["tokens"][0], strict=True) if a == b]


@pytest.mark.parametrize("layout", ["LBNHC", "BLHNC", "BLNHC"])
def test_layouts_of_the_cache(model, own, layout):
    """vLLM's own backend has LBHNC, heads outside rows of a block, alone."""
    check_same(generate(model("llama"), "strobe", {"VLLM_KV_CACHE_LAYOUT": layout}), own("llama"))


@pytest.mark.parametrize("block_size", [8, 48])
def test_block_sizes(model, own, block_size):
    ours = generate(model("gemma3"), "strobe", engine={"block_size": block_size})
    assert ours["tokens"] == own("gemma3")["tokens"]


def test_speculative_decoding(model, own):
    """Drafts from the prompt: several queries of a request in a step."""
    drafts = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    ours = generate(model("llama"), "strobe", engine={"speculative_config": drafts})
    assert ours["tokens"] == own("llama")["tokens"]


def test_compiled_models(model, own):
    """Attention is an opaque operator of the graph that vLLM compiles."""
    check_same(generate(model("llama"), "strobe", engine={"enforce_eager": False}), own("llama"))


def test_caches_of_8_bits(model):
    """Both backends round keys and values to the same float8; sums differ as in float32."""
    engine = {"kv_cache_dtype": "fp8"}
    ours, own = (generate(model("llama"), backend, engine=engine) for backend in ("strobe", "own"))
    check_same(ours, own)


def test_bfloat16(model):
    """Each backend rounds in its own order: the first token's log-probability is close, not equal."""
    ours, own = (generate(model("llama"), backend, engine={"dtype": "bfloat16"}) for backend in ("strobe", "own"))
    first = [[answers[0] for answers in run["logprobs"][0]] for run in (ours, own)]
    assert max(abs(x - y) for x, y in zip(*first, strict=True)) < 0.25
    assert ENGINE["dtype"] == "float32"
