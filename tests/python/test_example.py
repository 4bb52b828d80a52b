# SPDX-License-Identifier: Apache-2.0
"""examples/gpt: all attentions learn, alike, and the curves are written and drawn."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_training(tmp_path):
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog. " * 50, encoding="utf-8")
    settings = {"--text": "text", "--json": "losses.json", "--plot": "losses.svg", "--steps": 8, "--context": 32}
    command = [sys.executable, ROOT / "examples" / "gpt" / "train.py", "--attention", "strobe", "sdpa", "math"]
    command += [x for pair in settings.items() for x in pair]
    subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True, cwd=tmp_path)
    losses = json.loads((tmp_path / "losses.json").read_text())["losses"]
    assert list(losses) == ["strobe", "sdpa", "math"]
    for curve in losses.values():
        assert len(curve) == 8
        assert curve[-1] < curve[0]
        assert max(abs(a - b) for a, b in zip(curve, losses["sdpa"], strict=True)) < 1e-4
    assert "strobe" in (tmp_path / "losses.svg").read_text()


def test_eight_bit(tmp_path):
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog. " * 50, encoding="utf-8")
    settings = {"--text": "text", "--steps": 8, "--batches": 2, "--context": 32, "--width": 64, "--heads": 2}
    command = [sys.executable, ROOT / "examples" / "gpt" / "eight_bit.py"]
    command += [x for pair in settings.items() for x in pair]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True, cwd=tmp_path)
    losses = {name: float(loss) for name, _, loss, _ in map(str.split, run.stdout.splitlines())}
    assert list(losses) == ["float32", "bfloat16", "int8", "float8_e4m3fn"]
    for loss in losses.values():
        assert abs(loss - losses["float32"]) < 0.01
