# SPDX-License-Identifier: Apache-2.0
"""A dozen architectures of transformers beside eager attention; scripts/transformers_sweep.py runs them all."""

import pytest
import transformers
from architectures import cases, tiny

ARCHITECTURES = (
    *("llama", "mistral", "gemma2", "gemma3_text", "llama4_text", "gpt_oss", "qwen3_moe"),  # decoders
    *("bert", "modernbert", "t5gemma", "bart", "t5", "vit", "whisper"),
)
REFUSED = {"inkling2_text": "sinks", "deepseek_v32": "indices"}


def models(architecture):
    return [tiny.model_of(name, classes) for name, classes in tiny.classes() if name == architecture]


@pytest.fixture(scope="module", autouse=True)
def counted():
    transformers.logging.set_verbosity_error()
    cases.count_calls()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_equal_to_eager(architecture):
    for model in models(architecture):
        outcomes = {name: cases.outcome(model, case) for name, case in cases.cases_of(model).items()}
        compared = {name: outcome for name, outcome in outcomes.items() if outcome[0] != "not comparable"}
        assert "no mask" in compared
        assert {outcome[0] for outcome in compared.values()} == {"equal"}, compared


@pytest.mark.parametrize("architecture", REFUSED)
def test_what_is_missing_is_named(architecture):
    (model,) = models(architecture)
    kind, words = cases.outcome(model, cases.without_mask)
    assert kind == "refused"
    assert REFUSED[architecture] in words
