#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the gradients of sparse attention over lists of tokens, beside the same in PyTorch: rows gathered for 16
queries at a time, products in bfloat16, sums of rows by index_add_ in float32. Medians of CUDA events, both in turns;
and how far both are apart.

Usage: sparse_gradients.py [--rounds N]
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
from strobe_api import Sparse
from timing import median_milliseconds

CASES = (  # queries, query and key heads, keys, tokens of a list, head_dim and head_dim_v, whether V is part of K
    (1024, 128, 1, 8192, 2048, 576, 512, True),
    (1024, 16, 1, 8192, 2048, 576, 512, True),
    (1024, 64, 1, 4096, 640, 512, 512, True),
    (4096, 16, 1, 8192, 512, 128, 128, False),
    (4096, 32, 4, 8192, 512, 128, 128, False),
)
QUERIES_AT_ONCE = 16


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def lists(queries, keys, topk):
    """A list of different tokens for each query."""
    few = torch.stack([torch.randperm(keys, device="cuda")[:topk] for _ in range(64)])
    shift = 7 * torch.arange(queries, device="cuda")[:, None]
    return ((few.repeat(queries // 64, 1) + shift) % keys).to(torch.int32)[None, :, None].contiguous()


class Gathered:
    """The gradients of a Sparse call by PyTorch."""

    def __init__(self, call):
        self.call = call
        self.v = call.k[..., : call.o.shape[-1]] if call.v is None else call.v
        self.dq = torch.empty_like(call.q)
        self.dk, self.dv = (torch.empty(*x.shape[1:], device="cuda") for x in (call.k, self.v))

    def run(self):
        c = self.call
        heads_kv = c.k.shape[2]
        group = c.q.shape[2] // heads_kv
        d_sum = (c.d_o.float() * c.o.float()).sum(-1)
        self.dk.zero_()
        self.dv.zero_()
        for first in range(0, c.q.shape[1], QUERIES_AT_ONCE):
            rows = slice(first, first + QUERIES_AT_ONCE)
            tokens = c.indices[0, rows, 0].long()
            for head in range(heads_kv):
                heads = slice(head * group, (head + 1) * group)
                self._add(head, heads, rows, tokens, d_sum)

    def _add(self, head, heads, rows, tokens, d_sum):
        c, scale = self.call, self.call.q.shape[-1] ** -0.5
        k, v = c.k[0, :, head][tokens], self.v[0, :, head][tokens]
        q, d_o = c.q[0, rows, heads], c.d_o[0, rows, heads]
        p = torch.exp((q @ k.mT).float() * scale - c.lse[0, heads, rows].T[..., None])
        ds = (p * ((d_o @ v.mT).float() - d_sum[0, rows, heads, None]) * scale).to(q.dtype)
        self.dq[0, rows, heads] = ds @ k
        self.dk[:, head].index_add_(0, tokens.flatten(), (ds.mT @ q).float().flatten(0, 1))
        self.dv[:, head].index_add_(0, tokens.flatten(), (p.to(q.dtype).mT @ d_o).float().flatten(0, 1))

    def distance(self):
        """The largest relative distance of a gradient, as norms."""
        c, dk = self.call, self.dk
        if c.v is None:
            dk = dk.clone()
            dk[..., : self.dv.shape[-1]] += self.dv
        pairs = [(c.dq, self.dq), (c.dk[0], dk)] + ([] if c.v is None else [(c.dv[0], self.dv)])
        return max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    for queries, heads, heads_kv, keys, topk, head_dim, head_dim_v, part in CASES:
        q, k = random(1, queries, heads, head_dim), random(1, keys, heads_kv, head_dim)
        v = None if part else random(1, keys, heads_kv, head_dim_v)
        call = Sparse(q, k, v, lists(queries, keys, topk), head_dim_v)
        call.forward()
        peer = Gathered(call)
        took = median_milliseconds({"forward": call.forward, "backward": call.backward, "peer": peer.run}, rounds, 2)
        flops = 2 * queries * heads * topk * (3 * head_dim + 2 * head_dim_v)
        print(
            f"{queries} queries, {heads}/{heads_kv} heads {head_dim}/{head_dim_v}, {topk} of {keys} tokens: "
            f"forward {took['forward']:.2f} ms, backward {took['backward']:.2f} ms, "
            f"{flops / took['backward'] / 1e9:.0f} TFLOP/s, PyTorch {took['peer']:.2f} ms, "
            f"distance {peer.distance():.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
