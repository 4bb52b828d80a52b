#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times forwards of heads of more than 256 columns, beside a cuBLAS product of the same run: Gemma 4's shapes, 320/256,
and absorbed latent attention, whose V is a view of K. Medians of CUDA events.

Usage: wide_heads.py [--rounds N]
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
from strobe_api import Forward
from timing import captured, launches_for, median_milliseconds


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def call(batch, seqlen_q, seqlen_k, heads, heads_kv, head_dims, causal=False, latent=False):
    """A forward, and its operations."""
    head_dim, head_dim_v = head_dims
    q, k = random(batch, seqlen_q, heads, head_dim), random(batch, seqlen_k, heads_kv, head_dim)
    v = k[..., :head_dim_v] if latent else random(batch, seqlen_k, heads_kv, head_dim_v)
    o, lse = q.new_empty(batch, seqlen_q, heads, head_dim_v), torch.empty(batch, heads, seqlen_q, device="cuda")
    forward = Forward(q, k, v, o, lse, causal="bottom_right" if causal else None)
    flops = 2 * batch * heads * seqlen_q * seqlen_k * (head_dim + head_dim_v)
    if causal:
        flops *= 1 - (seqlen_q - 1) / (2 * seqlen_k)
    return forward.run, flops


def report(name, run, flops, rounds):
    a, b = random(8192, 8192), random(8192, 8192)
    runs = {"product": captured(lambda: a @ b), "strobe": captured(run)}
    took = median_milliseconds(runs, rounds, launches_for(flops))
    product, own = 2 * 8192**3 / took["product"] / 1e9, flops / took["strobe"] / 1e9
    print(f"{name:38} {took['strobe'] * 1e3:9.1f} us {own:6.0f} TFLOP/s, {own / product:5.2f} of cuBLAS", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for causal in (False, True):
        for seqlen in (4096, 8192, 16384):
            name = f"512/512 {seqlen} 16 heads {'causal' if causal else 'full'}"
            report(name, *call(1, seqlen, seqlen, 16, 16, (512, 512), causal), rounds)
    report("512/512 8192 16/4 heads causal", *call(1, 8192, 8192, 16, 4, (512, 512), True), rounds)
    report("320/256 8192 16 heads full", *call(1, 8192, 8192, 16, 16, (320, 256)), rounds)
    for heads, batch, queries in ((128, 128, 1), (128, 64, 2), (128, 1, 1024), (16, 128, 1)):
        name = f"576/512 latent, {batch} x {queries} queries of 4096, {heads} heads"
        report(name, *call(batch, queries, 4096, heads, 1, (576, 512), latent=True), rounds)


if __name__ == "__main__":
    main()
