# SPDX-License-Identifier: Apache-2.0
"""Tiny models served by SGLang's own engine on Strobe: the greedy tokens that transformers computes, and those of
SGLang's own backend for CPUs.

Chunked prefill and the prefix cache are on; the second turn of a run finds its prompts in the cache.
"""

import json
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from models import VOCABULARY, make

HERE = Path(__file__).parent
MINUTES = 10
TOKENS = 24
ENGINE = {
    "dtype": "float32",
    "chunked_prefill_size": 64,
    "max_running_requests": 16,
    "max_total_tokens": 8192,
    "mem_fraction_static": 0.3,
    "log_level": "error",
}
"""Prompts of more than 64 tokens take several steps."""


def prompts() -> list[list[int]]:
    """Of 1 to 300 tokens; three begin with the same 70."""
    draw = random.Random(3)

    def tokens(count):
        return [draw.randrange(3, VOCABULARY) for _ in range(count)]

    alone = [tokens(length) for length in (1, 2, 17, 31, 32, 33, 64, 100, 129, 300)]
    prefix = tokens(70)
    return alone + [prefix + tokens(length) for length in (5, 20, 60)]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a model by its name."""
    folder = tmp_path_factory.mktemp("models")

    def made(name, sharpness=3.0):
        path = make(name, folder, HERE.parents[1] / "docs" / "algorithm.md", sharpness)
        config = json.loads((path / "config.json").read_text())
        # SGLang reads Gemma 2's activation under a name that transformers has given up.
        config.setdefault("hidden_act", config.get("hidden_activation"))
        (path / "config.json").write_text(json.dumps(config))
        return path

    return cache(made)


@pytest.fixture(scope="session")
def wanted(model):
    """Greedy tokens by transformers, once for each model."""

    def tokens_of(name):
        network = transformers.AutoModelForCausalLM.from_pretrained(
            model(name), attn_implementation="eager", dtype=torch.float32
        ).eval()
        sampling = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 2}
        with torch.no_grad():
            return [
                network.generate(torch.tensor([prompt]), eos_token_id=None, **sampling)[0, len(prompt) :].tolist()
                for prompt in prompts()
            ]

    return cache(tokens_of)


def generate(path: Path, variables: dict[str, str] | None = None, **settings) -> dict:
    """What engine.py prints of a run."""
    settings = {"model": str(path), "prompts": prompts(), "tokens": TOKENS} | settings
    settings["engine"] = ENGINE | settings.get("engine", {})
    paths = [str(HERE / "standins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, HERE / "engine.py", json.dumps(settings)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | (variables or {}),
        capture_output=True,
        text=True,
        timeout=60 * MINUTES,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.splitlines()[-1])


def check(run, tokens, backend="strobe"):
    assert run["backend"] == backend
    assert run["tokens"] == [tokens, tokens]
    assert min(run["cached"][5:]) > 0  # of the prompts that are longer than a page


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
    broken = generate(model("llama"), {"ATTENTION_IS_ZERO": "1"}, turns=1)
    assert not [a for a, b in zip(broken["tokens"][0], wanted("llama"), strict=True) if a == b]
