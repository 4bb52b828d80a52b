# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu/context_parallel.sh on the CPU: its checks compare, every step measures, and what it wrote is drawn."""

import json
import os
import sys
from pathlib import Path

import children

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 550  # on a machine with much else to do
PROGRAM = ROOT / "bench" / "gpu" / "context_parallel.py"
SCRIPT = ROOT / "scripts" / "gpu" / "context_parallel.sh"
sys.path.insert(0, str(ROOT / "bench" / "gpu"))
try:
    from ranks import overlap
finally:
    sys.path.pop(0)


def run(tmp_path, *options, check=True):
    environment = os.environ | {"PYTHON": sys.executable}
    environment.pop("RING_FLASH_ATTENTION", None)
    return children.run([SCRIPT, tmp_path, "--device", "cpu", *options], env=environment, check=check, timeout=SECONDS)


def test_all_steps(tmp_path):
    printed = run(tmp_path, "--gpus", "2", "--minutes", "20").stdout
    results = json.loads((tmp_path / "ranks_2.json").read_text(encoding="utf-8"))
    checks = results["checks"]
    assert checks["wrong"] == [] and checks["left out"] == [] and results["left out"] == []
    bits = checks["results"]["row-invariant"]
    assert bits["zigzag, gather"]["has"] == ["the bits of one GPU"] and "refused" in bits["zigzag, ring"]
    assert "the same bits again" in checks["results"]["deterministic"]["documents, ring"]["has"]
    assert len(checks["results"]["option: sink"]) == 3 and checks["right"] > 90
    measured = {(x["mask"], x["tokens"], x["scheme"]) for x in results["cells"] if "share" in x}
    for tokens in (96, 192):
        for mask in ("causal", "documents"):
            assert {(mask, tokens, scheme) for scheme in ("gather", "all_to_all", "ring")} <= measured
        assert {
            ("deterministic", tokens, "gather"),
            ("window", tokens, "gather"),
            ("full", tokens, "gather"),
        } <= measured
    causal = results["cells"][0]
    assert causal["bytes received"]["backward"] > causal["bytes received"]["forward"] > 0
    assert 0 < causal["model"]["both"] < 1 and causal["share"]["both"]["in a row"] > 0
    assert [x["who"] for x in results["training"]] == ["2 GPUs, FSDP", "one GPU"]
    assert all(x["tokens/s"] > 0 for x in results["training"])
    assert results["decode"][0]["times as fast"]["single"] > 0
    assert [len(x["ranks"]) for x in results["overlap"]] == [2] * 6
    assert not [x for x in (*results["cells"], *results["decode"], *results["overlap"]) if "raised" in x]
    assert [x["measured"] for x in results["goals"]] == [None] * 4, "they are of 8k tokens, and of 4M keys"
    assert "ring-flash-attn is left out" in printed
    assert (tmp_path / "ranks_2.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_what_there_is_no_time_for_is_left_out(tmp_path):
    """Whatever there is time for, a JSON is written."""
    out = tmp_path / "ranks.json"
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    children.run([*start, PROGRAM, out, "--device", "cpu", "--minutes", "0.01"], timeout=SECONDS)
    results = json.loads(out.read_text(encoding="utf-8"))
    assert results["cells"] == [] and "causal, 96 tokens a GPU, zigzag, gather" in results["left out"]
    assert "option: sink" in results["checks"]["left out"]


def test_one_gpu(tmp_path):
    result = run(tmp_path, "--gpus", "1", check=False)
    assert result.returncode == 2 and "there are 1 GPUs, where several are needed" in result.stderr


def test_overlap():
    events = [
        ("strobe_forward", 0.0, 10.0),
        ("strobe_forward", 8.0, 20.0),
        ("Memcpy PtoP (Device -> Device)", 5.0, 9.0),
        ("ncclDevKernel_AllGather", 18.0, 24.0),
        ("barrier_kernel", 24.0, 26.0),
    ]
    found = overlap.summary(events)
    assert found["kernels, ms"] == 0.02 and found["travel, ms"] == 0.01 and found["waits, ms"] == 0.002
    assert found["ms"] == 0.026 and found["of travel under kernels"] == 0.6
