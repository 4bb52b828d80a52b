#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One decode step in a CUDA graph, replayed while its lengths change on the device: check_replay.py [--replays N]

The step appends a new key and value of each sequence to a cache in pages, rotated to their positions, computes the
attention of its query and advances the lengths; a sequence whose part of the cache is full starts again, each at
another time. Now and then O, and the whole cache, are compared with float64. Heads have 128 columns, then, with a tenth
of the replays, 512, and then rows are latent ones, 576 columns that are key and, but for the last 64, value, and are
appended as they are. Needs a GPU that reads pages, the Python package and PyTorch.
"""

import argparse
import sys
import time

import strobe
import torch

BATCH, HEADS, HEADS_KV = 9, 8, 2
LATENT, ROPE = 512, 64
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

    def __init__(self, dtype, head_dim, heads_kv=HEADS_KV):
        self.dtype, self.head_dim, self.heads_kv = dtype, head_dim, heads_kv
        pages = BATCH * MAX_PAGES + 5
        self.k, self.v = self.caches(pages)
        self.tokens = {
            name: torch.randn(TOKENS, BATCH, 1, heads, head_dim, device="cuda").to(dtype)
            for name, heads in (("q", HEADS), ("k", heads_kv), ("v", heads_kv))
        }
        self.now = {name: torch.zeros_like(rows[0]) for name, rows in self.tokens.items()}
        self.table = torch.randperm(pages, device="cuda")[: BATCH * MAX_PAGES].int().view(BATCH, MAX_PAGES)
        angles = torch.outer(torch.arange(float(CAPACITY)), 10000.0 ** -(torch.arange(head_dim // 2) / (head_dim // 2)))
        self.cos, self.sin = angles.cos().cuda(), angles.sin().cuda()
        self.lengths = torch.zeros(BATCH, dtype=torch.int32, device="cuda")
        self.used = torch.zeros(BATCH, dtype=torch.int32, device="cuda")  # with the step's own key
        self.capacity = (CAPACITY - 17 * torch.arange(BATCH, device="cuda")).int()  # each starts again when it is full
        self.steps = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.written_at = torch.full((BATCH, CAPACITY), -1, dtype=torch.int64, device="cuda")  # step of each row
        self.sequence = torch.arange(BATCH, device="cuda")
        self.q = torch.empty_like(self.now["q"])  # at its position
        self.o = torch.empty_like(self.now["q"][..., : self.v.shape[-1]]).contiguous()

    def caches(self, pages):
        """Without a key yet."""
        shape = (pages, PAGE_SIZE, self.heads_kv, self.head_dim)
        return [torch.full(shape, torch.nan, dtype=self.dtype, device="cuda") for _ in "kv"]

    def append(self):
        now, angles = self.now, {"cos": self.cos, "sin": self.sin}
        caches = (self.k, self.v, now["k"], now["v"], self.lengths)
        strobe.append(*caches, page_table=self.table, q=now["q"], q_out=self.q, **angles)

    def at_position(self, x, position):
        """What the step makes of rows at their positions, in float64."""
        return rotated(x, position, self.cos, self.sin)

    def run(self):
        token = self.steps % TOKENS
        for name, rows in self.tokens.items():
            self.now[name].copy_(rows.index_select(0, token)[0])
        self.written_at[self.sequence, self.lengths.long()] = self.steps.expand(BATCH)
        self.append()
        torch.add(self.lengths, 1, out=self.used)
        cache = {"page_table": self.table, "seqused_k": self.used}
        strobe.attention(self.q, self.k, self.v, causal=True, out=self.o, **cache)
        self.lengths.copy_(torch.where(self.used >= self.capacity, 0, self.used))
        self.steps += 1

    def check(self):
        """The largest errors of O and of the cache, in units of what roundings allow."""
        position = torch.arange(CAPACITY, device="cuda")
        page, row = self.table[:, position // PAGE_SIZE].long(), position % PAGE_SIZE
        k_cached, v_cached = (x[page, row] for x in (self.k, self.v))
        k_error, exact = self.check_cache(position, k_cached, v_cached)
        return self.output_error(position, k_cached, v_cached), k_error, exact

    def check_cache(self, position, k_cached, v_cached):
        have = self.written_at >= 0
        token = self.written_at.clamp(min=0) % TOKENS
        rows = {name: self.tokens[name][token, self.sequence[:, None], 0] for name in "kv"}
        k = self.at_position(rows["k"], position.expand(BATCH, -1))
        eps = torch.finfo(self.dtype).eps
        k_error = ((k_cached.double() - k).abs()[have] / (0.51 * eps * k.abs()[have] + 1e-6)).max()
        good_v = torch.equal(v_cached[have], self.values(rows)[have])
        untouched = bool(k_cached[~have].isnan().all() and v_cached[~have].isnan().all())
        other = torch.ones(self.k.shape[0], dtype=torch.bool, device="cuda")
        other[self.table.flatten().long()] = False
        untouched = untouched and bool(self.k[other].isnan().all() and self.v[other].isnan().all())
        return float(k_error), good_v and untouched

    def values(self, rows):
        return rows["v"]

    def output_error(self, position, k_cached, v_cached):
        last = self.used.long() - 1
        step = int(self.steps) - 1
        q = self.at_position(self.tokens["q"][step % TOKENS][:, 0], last).to(self.dtype).double()
        group = HEADS // self.heads_kv
        keys, values = (x.double().repeat_interleave(group, dim=2) for x in (k_cached, v_cached))
        scores = torch.einsum("bhd,bkhd->bhk", q, keys) * self.head_dim**-0.5
        hidden = position[None, None] > last[:, None, None]
        scores = scores.masked_fill(hidden, float("-inf"))
        values = values.masked_fill(hidden[:, 0, :, None, None], 0.0)
        p = scores.softmax(-1)
        wanted = torch.einsum("bhk,bkhd->bhd", p, values)
        magnitude = torch.einsum("bhk,bkhd->bhd", p, values.abs())
        eps = torch.finfo(self.dtype).eps
        return float(((self.o[:, 0].double() - wanted).abs() / (2 * eps * magnitude + 1e-5)).max())


class LatentStep(Step):
    """Rows that are key and value, which their model has rotated."""

    def __init__(self, dtype):
        part = strobe.RowPart(str(dtype).removeprefix("torch."), LATENT + ROPE)
        self.row_format = strobe.RowFormat(
            parts=(part,), row_bytes=2 * (LATENT + ROPE), head_dim_v=LATENT, alignment=16
        )
        super().__init__(dtype, LATENT + ROPE, heads_kv=1)

    def caches(self, pages):
        rows = torch.full((pages, PAGE_SIZE, 1, LATENT + ROPE), torch.nan, dtype=self.dtype, device="cuda")
        return rows, rows[..., :LATENT]

    def append(self):
        self.q.copy_(self.now["q"])
        self.row_format.append(self.k.view(torch.uint8), self.now["k"], self.lengths, page_table=self.table)

    def at_position(self, x, _):
        return x.double()

    def values(self, rows):
        return rows["k"][..., :LATENT]


STEPS = {
    "128 columns": lambda dtype: Step(dtype, 128),
    "512 columns": lambda dtype: Step(dtype, 512),
    "latent rows": LatentStep,
}


def check_replays(name, dtype, replays, every):
    """Whether all comparisons are good."""
    step = STEPS[name](dtype)
    for _ in range(3):
        step.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    worst, good, checks = [0.0, 0.0], True, 0
    start = time.monotonic()
    for replay in range(1, replays + 1):
        graph.replay()
        if replay % every == 0:
            *errors, exact = step.check()
            worst = [max(pair) for pair in zip(worst, errors, strict=True)]
            good = good and exact and all(error <= 1.0 for error in errors)  # NaN is not
            checks += 1
    seconds = time.monotonic() - start
    print(
        f"{name}, {dtype}: {replays} replays in {seconds:.1f} s, {checks} comparisons, errors of O and K at most "
        f"{worst[0]:.3f} and {worst[1]:.3f} of the bound: {'good' if good and checks else 'WRONG'}",
        flush=True,
    )
    return good and checks > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=97, help="replays between comparisons")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    good = True
    for name in STEPS:
        replays = max(1, arguments.replays // (2 if name == "128 columns" else 20))
        for dtype in (torch.bfloat16, torch.float16):
            good = check_replays(name, dtype, replays, min(arguments.every, replays)) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
