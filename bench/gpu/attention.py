#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times both passes on this machine's GPU beside PyTorch's cuDNN and FlashAttention-2 backends, the forward beside
standard attention too, and both beside FlashAttention-3 where FA3_LIBRARY names its kernels.

The table of the FlashAttention-3 paper: 16k tokens a call, hidden size 2048, head_dim 64, 128 and 256, seqlen 512 to
16k; or other numbers of heads and sequences. Every cell runs all implementations in turns, so that they see the same
clocks; the median over all turns counts.
FLOPs are 4 * batch * heads * seqlen^2 * head_dim, 10 instead of 4 in the backward, halved when causal.

Usage: attention.py [--json FILE] [--passes forward,backward,deterministic] [--dtypes bfloat16,float16]
                        [--head-dims 64,128,256] [--masks full,causal] [--seqlens 512,...]
                        [--heads N] [--heads-kv N] [--batch N] [--rounds N] [--kernels sm80]
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
import flash_attention_3
from strobe_api import Backward, Forward
from timing import launches_for, median_milliseconds

TOKENS, HIDDEN = 16384, 2048
STANDARD_LONGEST = 4096  # beyond it the matrix of scores no longer fits
PEERS = ("flash_attention_3", "cudnn", "flash_attention_2", "memory_efficient")
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash_attention_2": SDPBackend.FLASH_ATTENTION}
FLOAT32_BACKENDS = {"memory_efficient": SDPBackend.EFFICIENT_ATTENTION}
FLOPS = {"forward": 4, "backward": 10, "deterministic": 10}


def backends_of(tensor):
    """The first is what results are compared with."""
    return FLOAT32_BACKENDS if tensor.dtype == torch.float32 else BACKENDS


def sdpa(backend, q, k, v, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))

    def run():
        with sdpa_kernel(backend):
            grouped = q.shape[1] != k.shape[1]
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return run


def sdpa_backward(backend, q, k, v, d_o, causal):
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    o = sdpa(backend, *inputs, causal)()
    d_o = d_o.transpose(1, 2)
    return lambda: torch.autograd.grad(o, inputs, d_o, retain_graph=True)


def standard(q, k, v, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device="cuda").triu(1) if causal else None

    def run():
        scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
        if causal:
            scores = scores.masked_fill(mask, -math.inf)
        return scores.softmax(-1) @ v

    return run


def has_flash_attention_3(which, q, k):
    """Of fewer key heads the library has the backward at head_dim 128 alone."""
    if not flash_attention_3.is_available() or q.dtype != torch.bfloat16:
        return False
    head_dim = q.shape[3]
    if q.shape[2] != k.shape[2]:
        return which == "backward" and head_dim == 128
    return which != "deterministic" or head_dim <= 128


def forward_runs(q, k, v, causal, kernels):
    batch, seqlen, heads, _ = q.shape
    outputs = [(torch.empty_like(q), torch.empty(batch, heads, seqlen, device="cuda")) for _ in range(2)]
    mask = "bottom_right" if causal else None
    runs = {"strobe": Forward(q, k, v, *outputs[0], causal=mask, kernels=kernels).run}
    if has_flash_attention_3("forward", q, k):
        runs["flash_attention_3"] = flash_attention_3.forward(q, k, v, *outputs[1], causal=causal).run
    runs |= {name: sdpa(backend, q, k, v, causal) for name, backend in backends_of(q).items()}
    if seqlen <= STANDARD_LONGEST:
        runs["standard"] = standard(q, k, v, causal)
    runs["strobe"]()
    check({"o": outputs[0][0]}, [runs[next(iter(backends_of(q)))]().transpose(1, 2)])
    return runs


def backward_runs(q, k, v, causal, deterministic, kernels):
    batch, seqlen, heads, _ = q.shape
    o, lse, d_o = torch.empty_like(q), torch.empty(batch, heads, seqlen, device="cuda"), torch.randn_like(q)
    mask = "bottom_right" if causal else None
    Forward(q, k, v, o, lse, causal=mask, kernels=kernels).run()
    ours, theirs = ({name: torch.empty_like(x) for name, x in (("dq", q), ("dk", k), ("dv", v))} for _ in range(2))
    call = Backward(q, k, v, o, lse, d_o, **ours, causal=mask, deterministic=deterministic, kernels=kernels)
    runs = {"strobe": call.run}
    if has_flash_attention_3("deterministic" if deterministic else "backward", q, k):
        settings = {"causal": causal, "deterministic": deterministic}
        runs["flash_attention_3"] = flash_attention_3.backward(q, k, v, o, lse, d_o, **theirs, **settings).run
    # PyTorch's backends say nothing of the order of their sums.
    runs |= {name: sdpa_backward(backend, q, k, v, d_o, causal) for name, backend in backends_of(q).items()}
    runs["strobe"]()
    check(ours, runs[next(iter(backends_of(q)))]())
    return runs


def check(results, wanted):
    """What is wrong is not worth timing."""
    for (name, result), other in zip(results.items(), wanted, strict=True):
        error, largest = (result.float() - other.float()).abs().max().item(), other.float().abs().max().item()
        if not error <= (1e-4 if result.dtype == torch.float32 else 0.03) * largest:
            raise SystemExit(f"{name} differs from PyTorch's by {error:.3g}, where the largest is {largest:.3g}")


def measure_cell(which, dtype, head_dim, causal, seqlen, arguments):
    batch, heads = arguments.batch or TOKENS // seqlen, arguments.heads or HIDDEN // head_dim
    heads_kv = arguments.heads_kv or heads
    q, k, v = (
        torch.randn(batch, seqlen, count, head_dim, device="cuda", dtype=dtype) for count in (heads, heads_kv, heads_kv)
    )
    kernels = arguments.kernels
    runs = (
        forward_runs(q, k, v, causal, kernels)
        if which == "forward"
        else backward_runs(q, k, v, causal, which == "deterministic", kernels)
    )
    flops = FLOPS[which] * batch * heads * seqlen**2 * head_dim * (0.5 if causal else 1)
    torch.cuda.synchronize()
    time.sleep(0.2)  # the cell before has warmed the device
    return [
        {
            "engine": {"strobe": f"gpu ({kernels})", "flash_attention_3": name}.get(name, "pytorch"),
            "device": torch.cuda.get_device_name(),
            "implementation": name,
            "pass": which,
            "dtype": str(dtype).removeprefix("torch."),
            "head_dim": head_dim,
            "head_dim_v": head_dim,
            "causal": causal,
            "seqlen": seqlen,
            "batch": batch,
            "heads": heads,
            "heads_kv": heads_kv,
            "threads": 0,
            "median_ms": round(milliseconds, 5),
            "tflops": round(flops / milliseconds / 1e9, 1),
        }
        for name, milliseconds in median_milliseconds(runs, arguments.rounds, launches_for(flops)).items()
    ]


def print_line(title, cells):
    """Throughput by seqlen, a line for each implementation."""
    print(f"{title:36s}" + "".join(f"{cell[0]['seqlen']:8d}" for cell in cells))
    for name in dict.fromkeys(row["implementation"] for cell in cells for row in cell):
        speeds = [next((row["tflops"] for row in cell if row["implementation"] == name), None) for cell in cells]
        print(f"  {name:34s}" + "".join(f"{x:8.0f}" if x else "       -" for x in speeds), flush=True)


def ratio_to_the_best_peer(cell):
    speed = {row["implementation"]: row["tflops"] for row in cell}
    return speed["strobe"] / max(speed[name] for name in PEERS if name in speed)


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--passes", default="forward,backward")
    parser.add_argument("--dtypes", default="bfloat16,float16")
    parser.add_argument("--head-dims", type=numbers, default=[64, 128, 256])
    parser.add_argument("--seqlens", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--heads", type=int, help="of q; hidden size / head_dim by default")
    parser.add_argument("--heads-kv", type=int, help="of k and v; as many as of q by default")
    parser.add_argument("--batch", type=int, help="16k tokens / seqlen by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", choices=("sm90", "sm80"), default="sm90")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for which in arguments.passes.split(","):
        ratios = []
        for dtype in (getattr(torch, name) for name in arguments.dtypes.split(",")):
            for head_dim in arguments.head_dims:
                for mask in arguments.masks.split(","):
                    cells = [
                        measure_cell(which, dtype, head_dim, mask == "causal", seqlen, arguments)
                        for seqlen in arguments.seqlens
                    ]
                    shape = f"head_dim {head_dim} {mask}"
                    print_line(f"{which} {str(dtype).removeprefix('torch.')} {shape}", cells)
                    rows += [row for cell in cells for row in cell]
                    ratios += map(ratio_to_the_best_peer, cells)
        print(
            f"{which} beside the fastest peer: geometric mean {statistics.geometric_mean(ratios):.3f}, least "
            f"{min(ratios):.3f} over {len(ratios)} cells"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
