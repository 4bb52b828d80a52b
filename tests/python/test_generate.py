# SPDX-License-Identifier: Apache-2.0
"""examples/generate: the same text with and without a cache; parts of a cache give the whole, merged."""

import importlib.util
import re
from pathlib import Path

import programs
import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEXT = "the quick brown fox jumps over the lazy dog. " * 50
PROMPTS = ["the quick", "s", "brown fox jumps over the l"]


def run(program, *options, folder, check=True):
    return programs.run([EXAMPLES / program, *options], check=check, cwd=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a checkpoint of a model of two layers."""
    path = tmp_path_factory.mktemp("generate")
    (path / "text").write_text(TEXT, encoding="utf-8")
    settings = {"--text": "text", "--steps": 30, "--context": 64, "--width": 64, "--heads": 2, "--layers": 2}
    settings |= {"--attention": "strobe", "--checkpoint": "runs"}
    run("gpt/train.py", *(x for pair in settings.items() for x in pair), folder=path)
    return path


def generate(folder, *options, prompts=PROMPTS, check=True):
    """What it printed: texts of 30 more characters."""
    settings = ["runs/strobe.pt", *prompts, "--text", "text", "--count", 30]
    return run("generate/generate.py", *settings, *options, folder=folder, check=check)


def texts(ended):
    return ended.stdout.split("\n\n")[:-1]


# Pages of one token; pages that no chunk ends with; fewer pages than the texts need together, so that they wait.
CACHES = {
    "small": ("--page-size", 1, "--chunk", 7),
    "odd": ("--page-size", 5),
    "few": ("--page-size", 16, "--pages", 4),
}


@pytest.mark.parametrize(
    ("caches", "sampling"),
    [(("small", "few"), ()), (("odd", "few"), ("--samples", 2, "--temperature", 1.0, "--top-k", 10, "--seed", 3))],
)
def test_the_text_does_not_depend_on_the_cache(folder, caches, sampling):
    written = []
    for cache in caches:
        ended = generate(folder, *CACHES[cache], *sampling, "--check")
        assert "the texts are the same; logits differ by at most" in ended.stdout
        assert ended.stderr == ""  # the progress bars are for terminals
        written.append(texts(ended))
    assert written[0] == written[1]
    samples = 2 if sampling else 1
    prompts = [prompt for prompt in PROMPTS for _ in range(samples)]
    assert [len(text) for text in written[0]] == [len(prompt) + 30 for prompt in prompts]
    assert all(text.startswith(prompt) for text, prompt in zip(written[0], prompts, strict=True))
    assert len(set(written[0])) == len(prompts)


@pytest.mark.parametrize(
    ("options", "prompts", "message"),
    [
        ((), ["the", "THE"], "prompt 2 has characters that the text lacks: ['E', 'H', 'T']"),
        ((), ["the " * 10], "prompt 1 and 30 more are 70 characters: the model sees 64"),
        (("--pages", "2"), ["the"], "--pages 2 is too few: the longest text takes 3"),
    ],
)
def test_misuse_is_reported(folder, options, prompts, message):
    ended = generate(folder, *options, prompts=prompts, check=False)
    assert ended.returncode == 1
    assert ended.stderr.strip() == message


SMALL = ("--batch", 3, "--heads", 4, "--heads-kv", 2, "--head-dim", 32, "--page-size", 8, "--rounds", 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cache_in_two_places(tmp_path, dtype):
    options = [*SMALL, "--old", 100, "--recent", 30, "--dtype", dtype]
    printed = run("generate/hybrid.py", *options, folder=tmp_path).stdout
    assert "100 old ones in host memory, 30 recent ones" in printed
    for name in ("in two parts, merged", "old pages copied first"):
        assert re.search(rf"{name}: off by .* of what rounding may cost", printed)
    assert "there is no GPU: both parts run on the CPU engine" in printed
    assert re.search(r"in two parts, merged +[0-9.]+", printed)


def test_a_shared_prefix(tmp_path):
    printed = run("generate/shared_prefix.py", *SMALL, "--prefix", 96, "--own", 13, folder=tmp_path).stdout
    assert "of what rounding may cost" in printed
    assert "times as fast" in printed
    ended = run("generate/shared_prefix.py", *SMALL, "--prefix", 97, folder=tmp_path, check=False)
    assert ended.stderr.strip() == "--prefix 97 is no multiple of --page-size 8"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_merge_is_found(dtype):
    spec = importlib.util.spec_from_file_location("measure", EXAMPLES / "generate" / "measure.py")
    measure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(measure)
    parts = [torch.full((1, 1, 2, 32), x, dtype=dtype) for x in (1.0, -1.0)]
    plain, magnitude = torch.full_like(parts[0], 0.8), torch.ones_like(parts[0])
    measure.check("o", plain.clone(), plain, parts, magnitude, score=2.0, keys=130)
    for wrong in (0.0, 0.77, torch.nan):
        with pytest.raises(SystemExit, match="more than rounding explains"):
            measure.check("o", torch.full_like(plain, wrong), plain, parts, magnitude, score=2.0, keys=130)
