# SPDX-License-Identifier: Apache-2.0
"""examples/gpt/long_context.py: who sees all tokens learns the task, who sees the last ones guesses."""

import json
import os
import sys
from pathlib import Path

import children

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "gpt" / "long_context.py"
SETTINGS = ["--device", "cpu", "--cut", "16", "--steps", "24", "--tokens", "2048", "--questions", "200"]


def test_the_whole_context_is_needed(tmp_path):
    command = [sys.executable, str(PROGRAM), *SETTINGS, "--length", "256", "--sparse"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    children.run(command, cwd=tmp_path, env=environment)
    whole, cut = json.loads((tmp_path / "long_context.json").read_text())["runs"]
    assert (whole["seen"], cut["seen"]) == (256, 16)
    assert whole["accuracy"] > 0.9
    assert cut["accuracy"] < 0.3  # guessing is right once in eight
