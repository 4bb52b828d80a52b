#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory traffic of attention on this machine's GPU, by the GPU's own counters, beside what `strobe bench --io` counts.

Nsight Compute (`ncu`) reads, for every kernel of a call, the bytes that DRAM and L2 move: standard attention in
PyTorch (S and P stored), Strobe, and Strobe under a butterfly block mask, both passes, bfloat16. The prediction is the
count of `strobe bench --io` with a multiprocessor's shared memory as the fast memory: what has to come from L2.

    python bench/gpu/traffic.py --json traffic.json
    python bench/plot_traffic.py traffic.json --out traffic.svg
"""

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HEADS, HEAD_DIM, BLOCK = 16, 64, 128
SHAPES = {1024: 64, 4096: 4, 16384: 1}  # batch by sequence length; the first is the FlashAttention paper's
FAST_MEMORY = 227 * 1024 // 2  # bfloat16 elements that a multiprocessor's shared memory holds
# Read and written by DRAM; all requests to L2.
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum")
MARK = "spin"  # in the name of torch.cuda._sleep's kernel, which stands before each call
IO_ORDERS = {"standard": "standard", "strobe": "flash_attention_2", "butterfly": "butterfly"}


def standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * HEAD_DIM**-0.5
    return (scores.softmax(-1) @ v).transpose(1, 2)


def attention(implementation: str, seqlen: int) -> Callable[..., torch.Tensor]:
    if implementation == "standard":
        return standard
    import strobe
    import strobe.torch

    if implementation == "strobe":
        return strobe.torch.attention
    mask = torch.from_numpy(strobe.butterfly_block_mask(seqlen, seqlen, block_size=BLOCK)).cuda()
    return lambda q, k, v: strobe.torch.attention(q, k, v, block_mask=mask, block_size=BLOCK)


def calls() -> list[tuple[int, str, str]]:
    return [(n, name, which) for n in SHAPES for name in IO_ORDERS for which in ("forward", "backward")]


def run_profiled() -> None:
    """Every call once, after a call that is not counted; run under ncu by main()."""
    for seqlen, implementation, which in calls():
        shape = (SHAPES[seqlen], seqlen, HEADS, HEAD_DIM)
        q, k, v, d_o = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        inputs = [x.requires_grad_(which == "backward") for x in (q, k, v)]
        compute = attention(implementation, seqlen)
        for counted in (False, True):
            o = compute(*inputs) if which == "backward" else None
            torch.cuda.synchronize()
            if counted:
                torch.cuda.profiler.start()
                torch.cuda._sleep(1)
            if o is None:
                compute(*inputs)
            else:
                torch.autograd.grad(o, inputs, d_o)
            torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def measure(ncu: str) -> list[dict[str, float]]:
    """Bytes by metric of each call."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ncu.csv")
        options = ["--metrics", ",".join(METRICS), "--csv", "--page", "raw", "--print-units", "base"]
        options += ["--profile-from-start", "off", "--cache-control", "none", "--clock-control", "none"]
        command = [ncu, *options, "--log-file", str(log), sys.executable, str(Path(__file__).resolve()), "--profiled"]
        ended = subprocess.run(command, check=False)
        text = log.read_text(encoding="utf-8") if log.exists() else ""
        if ended.returncode != 0:
            raise SystemExit(f"ncu failed:\n{text[-2000:]}")
    lines = [line for line in text.splitlines() if line.startswith('"')]
    sums: list[dict[str, float]] = []
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        if not row["Kernel Name"]:  # the line of units
            continue
        if MARK in row["Kernel Name"]:
            sums.append(dict.fromkeys(METRICS, 0.0))
            continue
        for metric in METRICS:
            sums[-1][metric] += float(row[metric].replace(",", ""))
    if len(sums) != len(calls()):
        raise SystemExit(f"ncu reported {len(sums)} calls instead of {len(calls())}:\n{text[-2000:]}")
    return sums


def predict(program: str) -> dict[tuple[int, str, str], float]:
    """Bytes of each call by `strobe bench --io`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "io.json")
        arguments = ["--head-dim", HEAD_DIM, "--seqlen", ",".join(map(str, SHAPES)), "--fast-memory", FAST_MEMORY]
        subprocess.run([program, "bench", "--io", *map(str, arguments), "--json", str(out)], check=True)
        rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    moved = {(x["seqlen"], x["order"], x["pass"]): x["loads"] + x["stores"] for x in rows}
    return {(n, name, which): 2.0 * HEADS * SHAPES[n] * moved[n, IO_ORDERS[name], which] for n, name, which in calls()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("traffic.json"))
    parser.add_argument("--ncu", default=shutil.which("ncu") or "/usr/local/cuda/bin/ncu")
    parser.add_argument("--strobe", default=shutil.which("strobe") or "build/release/bin/strobe", help="the program")
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.profiled:
        run_profiled()
        return
    predicted = predict(options.strobe)
    record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "heads": HEADS, "head_dim": HEAD_DIM, "rows": []}
    for call, bytes_of in zip(calls(), measure(options.ncu), strict=True):
        seqlen, implementation, which = call
        row = {"seqlen": seqlen, "batch": SHAPES[seqlen], "implementation": implementation, "pass": which}
        row["dram_bytes"] = bytes_of["dram__bytes_read.sum"] + bytes_of["dram__bytes_write.sum"]
        row["l2_bytes"], row["io_bytes"] = bytes_of["lts__t_bytes.sum"], predicted[call]
        record["rows"].append(row)
        sizes = "  ".join(f"{name[:-6]} {row[name] / 1e9:8.2f} GB" for name in ("dram_bytes", "l2_bytes", "io_bytes"))
        print(f"{seqlen:>6} {implementation:<10} {which:<9} {sizes}")
    options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
