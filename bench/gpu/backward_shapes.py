#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the backward where the paper's table has no cell: grouped heads, values narrower than keys, windows, packed
sequences of unequal length, softcap. The peers are those that have the call: cuDNN and FlashAttention-2 of PyTorch, and
FlashAttention-3 where FA3_LIBRARY names its kernels; in turns with Strobe on the same tensors, and Strobe's gradients
are compared with theirs.

bfloat16; medians of CUDA events. FLOPs are 2 * heads * (3 head_dim + 2 head_dim_v) for each visible pair of a query and
a key. Of a softcap no peer has a gradient: its row is beside the same call without.

Usage: backward_shapes.py [--json FILE] [--rounds N] [--only NAME,...]
"""

import argparse
import dataclasses
import itertools
import json
import sys
from pathlib import Path

import torch
from attention import BACKENDS, check, sdpa_backward
from shapes import skewed_lengths

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
import flash_attention_3
from strobe_api import Backward, Forward
from timing import launches_for, median_milliseconds


@dataclasses.dataclass
class Shape:
    name: str
    seqlen: int
    batch: int = 1
    heads: int = 16
    heads_kv: int = 16
    head_dim: int = 128
    head_dim_v: int = 128
    causal: bool = False
    window: int = 0  # keys that a query sees; 0: all
    softcap: float = 0.0
    lengths: list[int] | None = None  # packed: of the sequences, the longest of which is seqlen

    def visible_pairs(self):
        def of_one(n):
            if self.window:
                return sum(min(row + 1, self.window) for row in range(n))
            return n * n / 2 if self.causal else n * n

        return sum(map(of_one, self.lengths)) if self.lengths else self.batch * of_one(self.seqlen)

    def flops(self):
        return 2 * self.heads * (3 * self.head_dim + 2 * self.head_dim_v) * self.visible_pairs()

    def tensors(self):
        """q, k, v and d_o."""
        leading = (sum(self.lengths),) if self.lengths else (self.batch, self.seqlen)
        columns = (
            *((self.heads, self.head_dim), (self.heads_kv, self.head_dim)),
            *((self.heads_kv, self.head_dim_v), (self.heads, self.head_dim_v)),
        )
        return [torch.randn(*leading, *shape, device="cuda", dtype=torch.bfloat16) for shape in columns]


def all_shapes():
    both = (False, True)
    for seqlen, causal in itertools.product((512, 1024, 2048, 4096, 8192, 16384), both):
        yield Shape("grouped", seqlen, 16384 // seqlen, heads_kv=4, causal=causal)
    for seqlen, causal in itertools.product((1024, 4096, 16384), both):
        yield Shape("192 and 128", seqlen, 16384 // seqlen, head_dim=192, causal=causal)
    for seqlen in (8192, 32768):
        yield Shape("window 1024", seqlen, 32768 // seqlen, causal=True, window=1024)
    for head_dim, causal in itertools.product((64, 128, 256), both):
        lengths = skewed_lengths(64, 32768)
        heads = 2048 // head_dim
        sizes = {"heads": heads, "heads_kv": heads, "head_dim": head_dim, "head_dim_v": head_dim}
        yield Shape("packed", max(lengths), **sizes, causal=causal, lengths=lengths)
    for seqlen in (2048, 8192):
        sizes = {"batch": 16384 // seqlen, "heads": 8, "heads_kv": 8, "head_dim": 256, "head_dim_v": 256}
        for softcap in (0.0, 50.0):
            yield Shape("softcap" if softcap else "no softcap", seqlen, **sizes, causal=True, softcap=softcap)


def flash_attention_2_backward(shape, q, k, v, d_o, cu_seqlens):
    """The kernels behind PyTorch's backend, whose function has neither windows nor packed sequences."""
    options = {"window_size_left": shape.window - 1, "window_size_right": 0} if shape.window else {}
    lengths = (cu_seqlens, cu_seqlens, shape.seqlen, shape.seqlen, 0.0, shape.causal)
    forward, backward = torch.ops.aten._flash_attention_forward, torch.ops.aten._flash_attention_backward
    o, lse, seed, offset, _ = forward(q, k, v, *lengths, False, **options)
    return lambda: backward(d_o, q, k, v, o, lse, *lengths, seed, offset, **options)


def peers(shape, tensors, o, lse, cu_seqlens):
    """What runs each peer that has the call; all but FlashAttention-3's give their gradients."""
    q, k, v, d_o = tensors
    runs = {}
    if shape.lengths or shape.window:
        return {"flash_attention_2": flash_attention_2_backward(shape, q, k, v, d_o, cu_seqlens)}
    if shape.softcap:
        return runs
    if shape.name == "grouped" and flash_attention_3.is_available():
        gradients = [torch.empty_like(x) for x in (q, k, v)]
        runs["flash_attention_3"] = flash_attention_3.backward(
            q, k, v, o, lse, d_o, *gradients, causal=shape.causal
        ).run
    for name, backend in BACKENDS.items():
        try:
            run = sdpa_backward(backend, q, k, v, d_o, shape.causal)
            run()
        except RuntimeError as error:  # the backend lacks the call
            print(f"{name} is left out of {shape.name}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        else:
            runs[name] = run
    return runs


def measure(shape, rounds):
    tensors = q, k, v, d_o = shape.tensors()
    cu_seqlens = None
    options = {"causal": "bottom_right" if shape.causal else None}
    if shape.window:
        options["window"] = (shape.window - 1, -1)
    if shape.softcap:
        options["softcap"] = shape.softcap
    if shape.lengths:
        cu_seqlens = torch.tensor([0, *shape.lengths], device="cuda").cumsum(0).int()
        options |= {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
        options |= {"max_seqlen_q": shape.seqlen, "max_seqlen_k": shape.seqlen}
    o = torch.empty_like(d_o)
    lse_shape = (shape.heads, len(q)) if shape.lengths else (shape.batch, shape.heads, shape.seqlen)
    lse = torch.empty(lse_shape, device="cuda")
    Forward(q, k, v, o, lse, **options).run()
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    runs = {"strobe": Backward(q, k, v, o, lse, d_o, *gradients, **options).run}
    runs["strobe"]()
    runs |= peers(shape, tensors, o, lse, cu_seqlens)
    if compared := next((name for name in ("cudnn", "flash_attention_2") if name in runs), None):
        check(dict(zip(("dq", "dk", "dv"), gradients, strict=True)), runs[compared]()[:3])
    torch.cuda.synchronize()
    times = median_milliseconds(runs, rounds, launches_for(shape.flops()))
    described = {key: value for key, value in dataclasses.asdict(shape).items() if key not in ("name", "lengths")}
    return [
        {
            "device": torch.cuda.get_device_name(),
            "shape": shape.name,
            "pass": "backward",
            "dtype": "bfloat16",
            **described,
            "sequences": len(shape.lengths) if shape.lengths else shape.batch,
            "implementation": name,
            "median_ms": round(time, 5),
            "tflops": round(shape.flops() / time / 1e9, 1),
        }
        for name, time in times.items()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=lambda text: text.split(","))
    arguments = parser.parse_args()
    rows = []
    for shape in all_shapes():
        if arguments.only and shape.name not in arguments.only:
            continue
        cell = measure(shape, arguments.rounds)
        rows += cell
        speeds = "  ".join(f"{row['implementation']} {row['tflops']:5.0f}" for row in cell)
        others = [row["median_ms"] for row in cell[1:]]
        ratio = f"  {min(others) / cell[0]['median_ms']:.3f} of the fastest" if others else ""
        mask = "causal" if shape.causal else "full"
        print(f"{shape.name:12} d{shape.head_dim:<4}{mask:7}{shape.seqlen:6}: {speeds} TFLOP/s{ratio}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
