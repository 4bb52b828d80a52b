# SPDX-License-Identifier: Apache-2.0
"""examples/gpt: all attentions learn, alike; runs go on after a kill, and on several processes; 8-bit attention."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import children
import programs
import pytest
import torch

# So that PyTorch's sums have one order, however busy the machine is.
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "gpt"
TEXT = "the quick brown fox jumps over the lazy dog. " * 50
TRAIN = FOLDER / "train.py"


@pytest.fixture
def command(tmp_path):
    """train.py in a folder of its own, as a list that takes more options."""
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    settings = {"--text": "text", "--json": "losses.json", "--plot": "losses.svg", "--steps": 8, "--context": 32}
    settings |= {"--width": 64, "--heads": 2, "--layers": 2}
    return [str(TRAIN), *(str(x) for pair in settings.items() for x in pair)]


def train(command, folder, *, check=True):
    """What it printed, as errors too, and the losses of each attention."""
    return _with_losses(programs.run(command, check=check, cwd=folder), folder)


def train_on_two(command, folder):
    """The same on two processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return _with_losses(children.run([*launcher, *command], cwd=folder, env=ENVIRONMENT), folder)


def _with_losses(ended, folder):
    path = folder / "losses.json"
    return ended, json.loads(path.read_text())["losses"] if path.exists() else {}


def furthest(curve, other):
    return max(abs(a - b) for a, b in zip(curve, other, strict=True))


def test_all_attentions_learn_alike(command, tmp_path):
    _, losses = train([*command, "--attention", "strobe", "sdpa", "math"], tmp_path)
    assert list(losses) == ["strobe", "sdpa", "math"]
    for curve in losses.values():
        assert len(curve) == 8
        assert curve[-1] < curve[0]
        assert furthest(curve, losses["sdpa"]) < 1e-4
    assert "strobe" in (tmp_path / "losses.svg").read_text()


def test_a_relative_bias_is_learnt_from_a_text_as_from_a_mask(command, tmp_path):
    command += ["--steps", "30"]
    _, losses = train([*command, "--relative-bias", "16", "--attention", "strobe", "sdpa"], tmp_path)
    assert list(losses) == ["strobe", "sdpa"]
    assert losses["strobe"][-1] < losses["strobe"][0]
    _, plain = train([*command, "--attention", "strobe"], tmp_path)
    moved = furthest(losses["strobe"], plain["strobe"])
    assert furthest(losses["strobe"], losses["sdpa"]) < min(1e-4, 0.1 * moved)

    ended, _ = train([*command, "--relative-bias", "16", "--attention", "math"], tmp_path, check=False)
    assert ended.returncode == 2
    assert "--relative-bias takes --attention strobe and sdpa" in ended.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--parallel", "ddp", "--accumulate", "3"),
        ("--parallel", "fsdp", "--accumulate", "3"),
        ("--parallel", "fsdp", "--share", "sequences", "--accumulate", "2"),
    ],
    ids=["ddp", "fsdp", "sequences"],
)
def test_micro_batches_and_processes_have_the_same_losses(command, tmp_path, options):
    command += ["--attention", "strobe"]
    _, whole = train(command, tmp_path)
    (tmp_path / "losses.json").unlink()
    _, shared = train_on_two([*command, *options], tmp_path)
    assert furthest(whole["strobe"], shared["strobe"]) < 1e-5


def test_a_killed_run_goes_on_from_its_checkpoint(command, tmp_path):
    command += ["--attention", "strobe", "--steps", "40"]
    _, whole = train(command, tmp_path)
    command += ["--checkpoint", "runs", "--save-every", "2"]
    path = tmp_path / "runs" / "strobe.pt"
    settings = {"cwd": tmp_path, "env": ENVIRONMENT, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *command], preexec_fn=children.die_with_parent, **settings)
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = torch.load(path, weights_only=True)["losses"]
    assert 2 <= len(kept) < 40
    ended, resumed = train(command, tmp_path)
    assert resumed == whole
    assert f"{len(kept)}/40" in ended.stderr  # where the progress bar begins

    ended, _ = train([*command, "--width", "32"], tmp_path, check=False)
    assert ended.returncode == 1
    assert "strobe.pt is of a run with width 64, not 32" in ended.stderr


def test_shares_must_be_whole(command, tmp_path):
    ended, _ = train([*command, "--accumulate", "5"], tmp_path, check=False)
    assert ended.returncode == 1
    assert "--accumulate 5 does not divide the 12 sequences of a process" in ended.stderr


def test_speed_of_each_attention_is_written_and_drawn(tmp_path):
    settings = ["--device", "cpu", "--sizes", "tiny", "--contexts", "32", "64", "--tokens", "64", "--rounds", "1"]
    programs.run([FOLDER / "speed.py", *settings, "--attention", "strobe", "math"], cwd=tmp_path)
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    places = [(row["context"], row["attention"], row["batch"]) for row in rows]
    assert places == [(32, "strobe", 2), (32, "math", 2), (64, "strobe", 1), (64, "math", 1)]
    # 64 wide, 2 layers: what is multiplied with are 12 width^2 weights a layer, biases, norms, positions and the head
    parameters = 2 * (12 * 64**2 + 9 * 64 + 4 * 64) + 2 * 64 + 32 * 64 + 50304 * 64
    flops = 2 * (6 * 32 * parameters + 12 * 2 * 64 * 32**2)
    assert rows[0]["tflops"] * rows[0]["seconds"] * 1e12 == pytest.approx(flops)
    assert "Strobe" in (tmp_path / "speed.svg").read_text()


def test_speed_of_the_llama_of_transformers(tmp_path):
    pytest.importorskip("transformers")
    settings = ["--device", "cpu", "--sizes", "llama-tiny", "--contexts", "32", "--tokens", "64", "--rounds", "1"]
    programs.run([FOLDER / "speed.py", *settings, "--attention", "strobe", "sdpa", "math"], cwd=tmp_path)
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert [(row["attention"], row["batch"]) for row in rows] == [("strobe", 2), ("sdpa", 2), ("math", 2)]
    # 128 wide, 2 layers, 4 heads and 1 key head of 32: projections, the feed-forward layer of 448, norms and the head
    parameters = 2 * (2 * 128**2 + 2 * 128 * 32 + 3 * 128 * 448 + 2 * 128) + 128 + 50304 * 128
    flops = 2 * (6 * 32 * parameters + 12 * 2 * 128 * 32**2)
    assert rows[0]["tflops"] * rows[0]["seconds"] * 1e12 == pytest.approx(flops)


def test_attentions_of_the_llama_agree(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(FOLDER)
    from llama import make_llama

    torch.manual_seed(0)
    model = make_llama(100, 48, "cpu", width=128, heads=4, layers=2)
    tokens = torch.randint(100, (2, 48))
    logits = {}
    for name in ("math", "sdpa", "strobe"):
        model.use(name)
        logits[name] = model(tokens)
    torch.testing.assert_close(logits["strobe"], logits["math"], rtol=1e-4, atol=1e-5)
    assert not torch.equal(logits["strobe"], logits["math"])  # computed by another library, not by the same code


def test_fewer_bits_keep_the_loss(tmp_path):
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    settings = {"--text": "text", "--steps": 8, "--batches": 2, "--context": 32, "--width": 64, "--heads": 2}
    run = programs.run([FOLDER / "eight_bit.py", *(x for pair in settings.items() for x in pair)], cwd=tmp_path)
    record = json.loads((tmp_path / "eight_bit.json").read_text())
    losses = record["losses"]
    assert list(losses) == ["not rounded", "bfloat16", "int8", "e4m3", "int8 cache", "e4m3 cache"]
    for loss in losses.values():
        assert abs(loss - losses["not rounded"]) < 0.01
    assert len(set(losses.values())) == len(losses)  # each computes with operands of its own
    assert 1 / 32 < record["largest_weight"] < 1
    assert f"perplexity {math.exp(losses['int8 cache']):.5f}" in run.stdout
