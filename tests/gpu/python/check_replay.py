#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One decode step in a CUDA graph, replayed while its lengths change on the device: check_replay.py [--replays N]

The step appends a new key and value of each sequence to a cache in pages, rotated to their positions, computes the
attention of its query and advances the lengths; a sequence whose part of the cache is full starts again, each at
another time. Now and then O, and the whole cache, are compared with float64. Needs a GPU that reads pages, the Python
package and PyTorch.
"""

import argparse
import sys
import time

import strobe
import torch

BATCH, HEADS, HEADS_KV, HEAD_DIM = 9, 8, 2, 128
PAGE_SIZE, MAX_PAGES = 16, 24
CAPACITY = PAGE_SIZE * MAX_PAGES
TOKENS = 61  # different ones, that come again and again: prime to the lengths


def rotated(x, position, cos, sin):
    """In float64; pairs lie half of head_dim apart."""
    a, b = x.double().chunk(2, dim=-1)
    c, s = cos[position].double().unsqueeze(-2), sin[position].double().unsqueeze(-2)
    return torch.cat([a * c - b * s, a * s + b * c], dim=-1)


class Step:
    """What the graph holds, and the state that it changes."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.tokens = {
            name: torch.randn(TOKENS, BATCH, 1, heads, HEAD_DIM, device="cuda").to(dtype)
            for name, heads in (("q", HEADS), ("k", HEADS_KV), ("v", HEADS_KV))
        }
        self.now = {name: torch.zeros_like(rows[0]) for name, rows in self.tokens.items()}
        pages = BATCH * MAX_PAGES + 5
        self.k, self.v = (
            torch.full((pages, PAGE_SIZE, HEADS_KV, HEAD_DIM), torch.nan, dtype=dtype, device="cuda") for _ in "kv"
        )
        self.table = torch.randperm(pages, device="cuda")[: BATCH * MAX_PAGES].int().view(BATCH, MAX_PAGES)
        angles = torch.outer(torch.arange(float(CAPACITY)), 10000.0 ** -(torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2)))
        self.cos, self.sin = angles.cos().cuda(), angles.sin().cuda()
        self.lengths = torch.zeros(BATCH, dtype=torch.int32, device="cuda")
        self.used = torch.zeros(BATCH, dtype=torch.int32, device="cuda")  # with the step's own key
        self.capacity = (CAPACITY - 17 * torch.arange(BATCH, device="cuda")).int()  # each starts again when it is full
        self.steps = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.written_at = torch.full((BATCH, CAPACITY), -1, dtype=torch.int64, device="cuda")  # step of each row
        self.sequence = torch.arange(BATCH, device="cuda")
        self.q_out = torch.empty_like(self.now["q"])
        self.o = torch.empty_like(self.now["q"])

    def run(self):
        token = self.steps % TOKENS
        for name, rows in self.tokens.items():
            self.now[name].copy_(rows.index_select(0, token)[0])
        self.written_at[self.sequence, self.lengths.long()] = self.steps.expand(BATCH)
        now = self.now
        strobe.append(
            *(self.k, self.v, now["k"], now["v"], self.lengths),
            page_table=self.table,
            cos=self.cos,
            sin=self.sin,
            q=now["q"],
            q_out=self.q_out,
        )
        torch.add(self.lengths, 1, out=self.used)
        cache = {"page_table": self.table, "seqused_k": self.used}
        strobe.attention(self.q_out, self.k, self.v, causal=True, out=self.o, **cache)
        self.lengths.copy_(torch.where(self.used >= self.capacity, 0, self.used))
        self.steps += 1

    def check(self):
        """The largest errors of O and of the cache, in units of what roundings allow."""
        step = int(self.steps) - 1
        written = self.written_at
        have = written >= 0
        token = written.clamp(min=0) % TOKENS
        position = torch.arange(CAPACITY, device="cuda")
        rows = {name: self.tokens[name][token, self.sequence[:, None], 0] for name in "kv"}
        k = rotated(rows["k"], position.expand(BATCH, -1), self.cos, self.sin)
        page, row = self.table[:, position // PAGE_SIZE].long(), position % PAGE_SIZE
        k_cached, v_cached = (x[page, row] for x in (self.k, self.v))
        eps = torch.finfo(self.dtype).eps
        k_error = ((k_cached.double() - k).abs()[have] / (0.51 * eps * k.abs()[have] + 1e-6)).max()
        good_v = torch.equal(v_cached[have], rows["v"][have])
        untouched = bool(k_cached[~have].isnan().all() and v_cached[~have].isnan().all())
        other = torch.ones(self.k.shape[0], dtype=torch.bool, device="cuda")
        other[self.table.flatten().long()] = False
        untouched = untouched and bool(self.k[other].isnan().all() and self.v[other].isnan().all())

        last = self.used.long() - 1
        q = rotated(self.tokens["q"][step % TOKENS][:, 0], last, self.cos, self.sin).to(self.dtype).double()
        group = HEADS // HEADS_KV
        keys, values = (x.double().repeat_interleave(group, dim=2) for x in (k_cached, v_cached))
        scores = torch.einsum("bhd,bkhd->bhk", q, keys) * HEAD_DIM**-0.5
        hidden = position[None, None] > last[:, None, None]
        scores = scores.masked_fill(hidden, float("-inf"))
        values = values.masked_fill(hidden[:, 0, :, None, None], 0.0)
        p = scores.softmax(-1)
        wanted = torch.einsum("bhk,bkhd->bhd", p, values)
        magnitude = torch.einsum("bhk,bkhd->bhd", p, values.abs())
        o_error = ((self.o[:, 0].double() - wanted).abs() / (2 * eps * magnitude + 1e-5)).max()
        return float(o_error), float(k_error), good_v and untouched


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=97, help="replays between comparisons")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    good = True
    for dtype in (torch.bfloat16, torch.float16):
        step = Step(dtype)
        for _ in range(3):
            step.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step.run()
        worst = [0.0, 0.0]
        checks = 0
        start = time.monotonic()
        for replay in range(1, arguments.replays // 2 + 1):
            graph.replay()
            if replay % arguments.every == 0:
                o_error, k_error, exact = step.check()
                worst = [max(worst[0], o_error), max(worst[1], k_error)]
                good = good and exact and max(worst) <= 1.0
                checks += 1
        seconds = time.monotonic() - start
        print(
            f"{dtype}: {arguments.replays // 2} replays in {seconds:.1f} s, {checks} comparisons, errors of O and K at "
            f"most {worst[0]:.3f} and {worst[1]:.3f} of the bound: {'good' if good else 'WRONG'}",
            flush=True,
        )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
