# SPDX-License-Identifier: Apache-2.0
"""Tiny models served by SGLang's own engine on Strobe: the greedy tokens that transformers computes, and those of
SGLang's own backend for CPUs.

Chunked prefill and the prefix cache are on; the second turn of a run finds its prompts in the cache.
"""

import pytest
from served import check, generate


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_tokens_are_those_of_transformers(model, wanted, name):
    """Grouped heads, norms of q and k, and windows of half of the layers with softcap."""
    check(generate(model(name)), wanted(name))


def test_sinks_in_place_of_another_backend(model, wanted):
    """SGLang takes a list of backends for gpt-oss: Strobe is there under the name of one of them."""
    check(generate(model("gpt_oss"), {"STROBE_SGLANG_AS": "triton"}, backend="triton"), wanted("gpt_oss"), "triton")


def test_pages(model, wanted):
    check(generate(model("llama"), engine={"page_size": 16}), wanted("llama"))


def test_tokens_are_those_of_the_own_backend(model, wanted):
    check(generate(model("llama"), backend="torch_native"), wanted("llama"), "torch_native")


def test_a_broken_backend_gives_other_tokens(model, wanted):
    broken = generate(model("llama"), {"ATTENTION_IS_ZERO": "all"}, turns=1)
    assert not [a for a, b in zip(broken["tokens"][0], wanted("llama"), strict=True) if a == b]
