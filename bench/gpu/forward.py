#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the forward on this machine's GPU against PyTorch's cuDNN and FlashAttention-2 backends and standard attention.

The table of the FlashAttention-3 paper: 16k tokens a call, hidden size 2048, head_dim 64, 128 and 256, seqlen 512 to
16k. Every cell runs all implementations in turns, so that they see the same clocks; the median over all turns counts.
FLOPs are 4 * batch * heads * seqlen^2 * head_dim, halved when causal.

Usage: forward.py [--json FILE] [--dtypes bfloat16,float16] [--head-dims 64,128,256] [--seqlens 512,...]
                        [--rounds N]
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as functional
from timing import Forward, median_milliseconds
from torch.nn.attention import SDPBackend, sdpa_kernel

TOKENS, HIDDEN = 16384, 2048
STANDARD_LONGEST = 4096  # beyond it the matrix of scores no longer fits


def sdpa(backend, q, k, v, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))

    def run():
        with sdpa_kernel(backend):
            functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def standard(q, k, v, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device="cuda").triu(1) if causal else None

    def run():
        scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
        if causal:
            scores = scores.masked_fill(mask, -math.inf)
        return scores.softmax(-1) @ v

    return run


def measure_cell(dtype, head_dim, causal, seqlen, rounds):
    batch, heads = TOKENS // seqlen, HIDDEN // head_dim
    q, k, v = (torch.randn(batch, seqlen, heads, head_dim, device="cuda", dtype=dtype) for _ in range(3))
    o, lse = torch.empty_like(q), torch.empty(batch, heads, seqlen, device="cuda")
    runs = {
        "strobe": Forward(q, k, v, o, lse, causal="bottom_right" if causal else None).run,
        "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
        "flash_attention_2": sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, causal),
    }
    if seqlen <= STANDARD_LONGEST:
        runs["standard"] = standard(q, k, v, causal)
    flops = 4 * batch * heads * seqlen**2 * head_dim * (0.5 if causal else 1)
    torch.cuda.synchronize()
    time.sleep(0.2)  # the cell before has warmed the device
    rows = []
    launches = max(2, min(10, int(2e12 / flops)))
    for name, milliseconds in median_milliseconds(runs, rounds, launches).items():
        rows.append(
            {
                "engine": "hopper" if name == "strobe" else "pytorch",
                "device": torch.cuda.get_device_name(),
                "implementation": name,
                "pass": "forward",
                "dtype": str(dtype).removeprefix("torch."),
                "head_dim": head_dim,
                "head_dim_v": head_dim,
                "causal": causal,
                "seqlen": seqlen,
                "batch": batch,
                "heads": heads,
                "threads": 0,
                "median_ms": round(milliseconds, 5),
                "tflops": round(flops / milliseconds / 1e9, 1),
            }
        )
    return rows


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dtypes", default="bfloat16,float16")
    parser.add_argument("--head-dims", type=numbers, default=[64, 128, 256])
    parser.add_argument("--seqlens", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows, ratios = [], []
    for dtype in (getattr(torch, name) for name in arguments.dtypes.split(",")):
        for head_dim in arguments.head_dims:
            for causal in (False, True):
                cells = [
                    measure_cell(dtype, head_dim, causal, seqlen, arguments.rounds) for seqlen in arguments.seqlens
                ]
                rows += [row for cell in cells for row in cell]
                title = f"{str(dtype).removeprefix('torch.')} head_dim {head_dim} {'causal' if causal else 'full'}"
                print(f"{title:32s}" + "".join(f"{s:8d}" for s in arguments.seqlens))
                for name in ("strobe", "cudnn", "flash_attention_2", "standard"):
                    speeds = [next((r["tflops"] for r in cell if r["implementation"] == name), None) for cell in cells]
                    print(f"  {name:30s}" + "".join(f"{x:8.0f}" if x else "       -" for x in speeds), flush=True)
                for cell in cells:
                    speed = {row["implementation"]: row["tflops"] for row in cell}
                    ratios.append(speed["strobe"] / max(speed["cudnn"], speed["flash_attention_2"]))
    print(
        f"against the faster of cudnn and flash_attention_2: geometric mean {statistics.geometric_mean(ratios):.3f}, "
        f"least {min(ratios):.3f} over {len(ratios)} cells"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
