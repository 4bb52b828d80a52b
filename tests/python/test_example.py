# SPDX-License-Identifier: Apache-2.0
"""examples/gpt: both attentions learn, alike, and the curves are drawn."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_training(tmp_path):
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog. " * 50, encoding="utf-8")
    settings = {"--text": tmp_path / "text", "--plot": tmp_path / "losses.svg", "--steps": 8, "--context": 32}
    command = [sys.executable, ROOT / "examples" / "gpt" / "train.py", *(x for pair in settings.items() for x in pair)]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    difference = next(float(line.split()[4]) for line in lines if line.startswith("the losses differ by"))
    assert difference < 1e-4
    assert "strobe" in (tmp_path / "losses.svg").read_text()
