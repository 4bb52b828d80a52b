# SPDX-License-Identifier: Apache-2.0
"""examples/gpt/long_context.py: who sees all tokens learns the task, who sees the last ones guesses."""

import json
from pathlib import Path

import programs

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "gpt" / "long_context.py"
SETTINGS = ["--device", "cpu", "--cut", "16", "--steps", "24", "--tokens", "2048", "--questions", "200"]


def test_the_whole_context_is_needed(tmp_path):
    programs.run([PROGRAM, *SETTINGS, "--length", "256", "--sparse"], cwd=tmp_path)
    whole, cut = json.loads((tmp_path / "long_context.json").read_text())["runs"]
    assert (whole["seen"], cut["seen"]) == (256, 16)
    assert whole["accuracy"] > 0.9
    assert cut["accuracy"] < 0.3  # guessing is right once in eight


def test_answers_in_fewer_bits(tmp_path):
    programs.run([PROGRAM, *SETTINGS, "--length", "256", "--cut", "0", "--fewer-bits"], cwd=tmp_path)
    (run,) = json.loads((tmp_path / "long_context.json").read_text())["runs"]
    right = run["fewer_bits"]
    assert list(right) == ["not rounded", "bfloat16", "int8", "e4m3", "int8 cache", "e4m3 cache"]
    assert right["not rounded"] > 0.9
    for share in right.values():
        assert abs(share - right["not rounded"]) <= 0.02


def test_fewer_bits_take_no_block_mask(tmp_path):
    ended = programs.run([PROGRAM, "--sparse", "--fewer-bits"], check=False, cwd=tmp_path)
    assert ended.returncode == 2
    assert "--fewer-bits goes without --sparse" in ended.stderr
