# SPDX-License-Identifier: Apache-2.0
"""DeepSeek's models, tiny, served by SGLang's own engine on Strobe: the greedy tokens that transformers computes.

SGLang serves a step that has prompts alone, none with a prefix, by the layers that are not absorbed, and chunks,
decodes and prompts beside chunks by the absorbed ones.
"""

import pytest
from served import check, generate, prompts

MODEL = "deepseek_v3"


@pytest.mark.parametrize("name", ["deepseek_v2", MODEL, "deepseek_v3_experts"])
def test_tokens_are_those_of_transformers(model, wanted, name):
    check(generate(model(name)), wanted(name))


@pytest.mark.parametrize("engine", [{"page_size": 16}, {"enable_mixed_chunk": True}], ids=["pages", "mixed"])
def test_pages_and_mixed_steps(model, wanted, engine):
    check(generate(model(MODEL), engine=engine), wanted(MODEL))


def test_columns_apart_in_place_of_another_backend(model, wanted):
    """For this name SGLang leaves the rotated columns of queries and new rows apart."""
    run = generate(model(MODEL), {"STROBE_SGLANG_AS": "fa3"}, backend="fa3", engine={"page_size": 16})
    check(run, wanted(MODEL), "fa3")


@pytest.mark.parametrize("broken", ["absorbed", "own"])
def test_both_layers_are_used(model, wanted, broken):
    """The first step has prompts alone, and their answers need both."""
    run = generate(model(MODEL), {"ATTENTION_IS_ZERO": broken}, turns=1)
    answers = list(zip(prompts(), run["tokens"][0], wanted(MODEL), strict=True))
    if broken == "absorbed":
        assert not [len(prompt) for prompt, tokens, right in answers if tokens == right]
    else:
        assert answers[1][1] != answers[1][2]
