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
