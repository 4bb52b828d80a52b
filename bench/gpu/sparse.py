#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times sparse attention over absorbed latent rows (128 and 16 query heads, one key head, 576 and 512 columns): each
query's list names 2,048 rows of a pool, in bfloat16 and in DeepSeek-V3.2's 656 bytes. Beside it a cuBLAS product and a
copy of the same run. Medians of CUDA events over replayed graphs; FLOPs are those of both products.

Usage: sparse.py [--rounds N] [--json FILE]
"""

import argparse
import json
import sys
from pathlib import Path

import strobe
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
from timing import captured, copy_by_kernel, launches_for, median_milliseconds

HEAD_DIM, HEAD_DIM_V, TOPK, POOL = 576, 512, 2048, 65536
SHAPES = (  # queries, each with a list of its own, and heads
    (4096, 128),
    (128, 128),
    (64, 128),
    (16, 128),
    (128, 16),
)
FORMATS = {"bfloat16": None, "656 bytes": strobe.RowFormat.deepseek_v32()}


def pool_of(rows, row_format):
    if row_format is None:
        return rows
    pool = torch.empty(*rows.shape[:-1], row_format.row_bytes, dtype=torch.uint8, device="cuda")
    row_format.encode(rows, pool)
    return pool


def call(queries, heads, row_format):
    """A call, its FLOPs, and the bytes of rows that it reads."""
    rows = torch.randn(1, POOL, 1, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(1, queries, heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    indices = torch.rand(queries, POOL, device="cuda").topk(TOPK).indices.int().reshape(1, queries, 1, TOPK)
    pool, out = pool_of(rows, row_format), q.new_empty(1, queries, heads, HEAD_DIM_V)

    def run():
        strobe.sparse_attention(q, pool, None, indices, k_format=row_format, head_dim_v=HEAD_DIM_V, out=out)

    flops = 2 * queries * heads * TOPK * (HEAD_DIM + HEAD_DIM_V)
    return run, flops, queries * TOPK * pool.shape[-1] * pool.element_size()


def measure(queries, heads, row_format, rounds):
    run, flops, read = call(queries, heads, row_format)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    copy, copied = copy_by_kernel()
    runs = {"call": captured(run), "product": captured(lambda: a @ b), "copy": copy}
    took = median_milliseconds(runs, rounds, launches_for(flops))
    return {
        "microseconds": took["call"] * 1e3,
        "TFLOP/s": flops / took["call"] / 1e9,
        "of cuBLAS": flops / took["call"] / (2 * 8192**3 / took["product"]),
        "of a copy's bandwidth": read / took["call"] / (copied / took["copy"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {}
    for queries, heads in SHAPES:
        for format_name, row_format in FORMATS.items():
            name = f"{queries} queries, {heads} heads, {format_name}"
            results[name] = measure(queries, heads, row_format, arguments.rounds)
            numbers = ", ".join(f"{x:.3g} {what}" for what, x in results[name].items())
            print(f"{name:36} {numbers}", flush=True)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "results": results}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
