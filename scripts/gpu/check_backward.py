#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every variant that pack_backward.py compiled against float64: random shapes and options of its rule.

Gradients begin as NaN, and canaries stand around their rows; rows that no sequence uses hold NaN, and some hidden keys
and queries do, too. Every element must be within the error that its arithmetic implies (reference.py).

Usage: check_backward.py DIR [--configurations N] [--first-seed S] [--longest L] [--names A,B] [--seconds T]
"""

import argparse
import dataclasses
import math
import random
import sys
import time

import torch
from cases import CANARY, PAD, Side, random_tensor
from reference import attention, gradients
from run_backward import RULE_FLAGS, Backward, Options, Variants


def framed(shape, dtype):
    """A tensor of NaN with canaries on both sides of every row, and all of it with them."""
    whole = torch.full((*shape[:-1], shape[-1] + PAD), CANARY, device="cuda", dtype=dtype)
    inner = whole[..., PAD // 2 : PAD // 2 + shape[-1]]
    inner.fill_(math.nan)
    return inner, whole


class Configuration:
    """One seed's call of a variant."""

    def __init__(self, variant, seed, longest):
        rng = self.rng = random.Random(seed)
        torch.manual_seed(seed)
        c = self.config = variant["config"]
        self.name = variant["name"]
        self.dtype = torch.bfloat16 if c["element"] == "bf16" else torch.float16
        self.head_dim, self.head_dim_v = (
            rng.choice([c[n], c[n], rng.randrange(8, c[n] + 1, 8)]) for n in ("head_dim", "head_dim_v")
        )
        self.heads_kv = rng.choice([1, 2, 3])
        self.heads = self.heads_kv * rng.choice([1, 1, 2, 3])
        self.make_sides(longest)
        self.make_masks(longest)
        self.make_tensors()

    def make_sides(self, longest):
        rng, batch = self.rng, self.rng.choice([1, 2, 3])

        def length():
            few = [0, 1, 64, 128] if self.config["varlen"] else [1, 64, 128]
            return rng.choice([*few, rng.randrange(1, 130), *(rng.randrange(1, longest) for _ in range(3))])

        sides = []
        for _ in range(2):
            packed = self.config["varlen"] and rng.random() < 0.6
            used = self.config["varlen"] and rng.random() < 0.5
            lengths = [length() for _ in range(batch)] if packed else [length()] * batch
            sides.append(Side(rng, lengths, packed, used, rng.choice([0, 0, 5, 200])))
        self.q_side, self.k_side = sides

    def make_masks(self, longest):
        c, rng = self.config, self.rng
        left, right = c["mask_left"], c["mask_right"]
        self.causal, window = None, [-1, -1]
        if right:
            self.causal = rng.choice([None, "bottom_right", "bottom_right", "top_left"])
            if self.causal is None:
                window[1] = rng.randrange(longest // 2)
        if left and (not c["chunked"] or rng.random() < 0.5):
            window[0] = rng.choice([0, rng.randrange(longest // 2), rng.randrange(100)])
        self.window = tuple(window)
        self.chunk = rng.choice([1, rng.randrange(2, 300), rng.randrange(2, longest)]) if c["chunked"] else 0
        self.softcap = rng.choice([2.0, 5.0, 30.0]) if c["softcap"] else 0.0
        signs = [-0.2, 0.0] if c["scale_first"] and not c["alibi"] else [None, None, 0.3, 1.0]
        self.scale = rng.choice([*signs, -0.2, 0.0] if c["alibi"] or c["softcap"] else signs)
        self.slopes = self.sink = None
        if c["alibi"]:
            per_batch = (len(self.q_side.lengths),) if rng.random() < 0.5 else ()
            self.slopes = torch.randn(*per_batch, self.heads, device="cuda") * rng.choice([0.01, 0.3])
        if rng.random() < 0.4:
            self.sink = torch.randn(self.heads, device="cuda") * rng.choice([1.0, 5.0])

    def make_tensors(self):
        padded, q, k = self.rng.random() < 0.3, self.q_side, self.k_side
        self.q = random_tensor(q.shape(self.heads, self.head_dim), self.dtype, padded)
        self.do = random_tensor(q.shape(self.heads, self.head_dim_v), self.dtype, padded)
        self.k = random_tensor(k.shape(self.heads_kv, self.head_dim), self.dtype, padded)
        self.v = random_tensor(k.shape(self.heads_kv, self.head_dim_v), self.dtype, padded)
        self.poison()
        rows = q.shape(self.heads, 1)
        lse_shape = (self.heads, rows[0]) if q.packed else (rows[0], self.heads, rows[1])
        self.d_lse = torch.randn(lse_shape, device="cuda") if self.rng.random() < 0.4 else None
        self.o = torch.zeros_like(self.do, memory_format=torch.contiguous_format)
        self.lse = torch.full(lse_shape, -math.inf, device="cuda")
        for i, used in enumerate(q.used):
            o, lse, *_ = attention(*self.inputs_of(i), sink=self.sink, **self.score_options(i))
            q.of(self.o, i)[:used] = o.to(self.dtype)
            self.lse_of(self.lse, i)[:, :used] = lse.float()
        self.gradients = [framed(x.shape, self.dtype) for x in (self.q, self.k, self.v)]
        self.d_sink = None if self.sink is None else torch.full((self.heads,), math.nan, device="cuda")

    def poison(self):
        """What no sequence uses may hold anything, and so may what masks hide."""
        for side, tensors in ((self.q_side, (self.q, self.do)), (self.k_side, (self.k, self.v))):
            for tensor in tensors:
                if side.packed:
                    tensor[side.starts[-1] :] = math.nan
                for i, used in enumerate(side.used):
                    side.of(tensor, i)[used:] = math.nan
            if (self.config["mask_left"] or self.config["mask_right"]) and self.rng.random() < 0.4:
                i = self.rng.randrange(len(side.used))
                if side.used[i] > 0:
                    row = self.rng.choice([0, side.used[i] - 1, self.rng.randrange(side.used[i])])
                    side.of(self.rng.choice(tensors), i)[row] = self.rng.choice([math.nan, math.inf])

    def lse_of(self, tensor, i):
        start = self.q_side.starts[i]
        return tensor[:, start : start + self.q_side.lengths[i]] if self.q_side.packed else tensor[i]

    def inputs_of(self, i):
        q, k = self.q_side, self.k_side
        return q.of(self.q, i)[: q.used[i]], k.of(self.k, i)[: k.used[i]], k.of(self.v, i)[: k.used[i]]

    def score_options(self, i):
        left, right = (x if x >= 0 else None for x in self.window)
        return dict(
            left=left,
            right=0 if self.causal else right,
            bottom_right=self.causal != "top_left",
            chunk=self.chunk,
            scale=self.head_dim**-0.5 if self.scale is None else self.scale,
            softcap=self.softcap,
            alibi_slopes=self.slopes if self.slopes is None or self.slopes.dim() == 1 else self.slopes[i],
        )

    def options(self):
        q, k = self.q_side, self.k_side
        return Options(
            causal=self.causal, window=self.window, chunk=self.chunk, scale=self.scale, softcap=self.softcap,
            alibi_slopes=self.slopes, sink=self.sink, d_sink=self.d_sink, d_lse=self.d_lse, cu_seqlens_q=q.cu_seqlens,
            cu_seqlens_k=k.cu_seqlens, seqused_q=q.seqused, seqused_k=k.seqused, max_seqlen_q=max(q.lengths),
            max_seqlen_k=max(k.lengths),
        )  # fmt: skip

    def call(self, variants):
        inner = [x for x, _ in self.gradients]
        more = {"ds_mb": self.rng.choice([1, 64]), "warpgroups": self.rng.choice([2, 3])}
        more = more if self.config["by_roles"] else {}
        return Backward(
            variants, self.name, self.q, self.k, self.v, self.o, self.lse, self.do, *inner, self.options(), **more
        )

    def faults(self):
        """What is wrong with the gradients, in words; empty if nothing."""
        found, self.worst = [], 0.0
        sink_sum = None
        for (inner, whole), side, name in zip(
            self.gradients, (self.q_side, self.k_side, self.k_side), ("dq", "dk", "dv"), strict=True
        ):
            edges = (whole[..., : PAD // 2], whole[..., PAD // 2 + inner.shape[-1] :])
            if not all((x == CANARY).all() for x in edges):
                found.append(f"wrote outside {name}")
            unused = [side.of(inner, i)[used:] for i, used in enumerate(side.used)]
            if side.packed:
                unused.append(inner[side.starts[-1] :])
            if not all((x == 0).all() for x in unused):
                found.append(f"unused rows of {name} are not 0")
        for i, used in enumerate(self.q_side.used):
            q, k, v = self.inputs_of(i)
            d_lse = None if self.d_lse is None else self.lse_of(self.d_lse, i)[:, :used]
            o, do = (self.q_side.of(x, i)[:used] for x in (self.o, self.do))
            lse = self.lse_of(self.lse, i)[:, :used]
            *want, of_sink = gradients(
                q, k, v, o, lse, do, d_lse=d_lse, sink=self.sink, dtype=self.dtype, **self.score_options(i)
            )
            got = [self.q_side.of(self.gradients[0][0], i)[:used]]
            got += [self.k_side.of(x, i)[: len(k)] for x, _ in self.gradients[1:]]
            for name, g, w in zip(("dq", "dk", "dv"), got, want, strict=True):
                found += self.compare(f"{name} of sequence {i}", g, w)
            if of_sink is not None:
                if sink_sum is not None:
                    of_sink.value += sink_sum.value
                    of_sink.error += sink_sum.error
                    of_sink.known &= sink_sum.known
                sink_sum = of_sink
        if sink_sum is not None:
            found += self.compare("d_sink", self.d_sink, sink_sum)
        return found

    def compare(self, name, got, want):
        """Non-finite values count as infinitely wrong."""
        ratio = ((got.double() - want.value).abs() / want.error).nan_to_num(math.inf, math.inf)
        ratio = torch.where(want.known, ratio, 0.0)
        worst = ratio.max().item() if ratio.numel() else 0.0
        self.worst = max(self.worst, worst)
        return [] if worst <= 1 else [f"{name} at {worst:.2f} of the bound in {(ratio > 1).sum().item()} places"]

    def __str__(self):
        flags = [n for n in RULE_FLAGS if self.config[n]]
        return (
            f"{self.name} {flags} {self.head_dim}/{self.head_dim_v} heads {self.heads}/{self.heads_kv} causal "
            f"{self.causal} window {self.window} chunk {self.chunk} softcap {self.softcap} scale {self.scale} sink "
            f"{self.sink is not None} d_lse {self.d_lse is not None} q {self.q_side.lengths} used {self.q_side.used} "
            f"packed {self.q_side.packed} k {self.k_side.lengths} used {self.k_side.used} packed {self.k_side.packed}"
        )


@dataclasses.dataclass
class Tally:
    count: int = 0
    failures: int = 0
    worst: float = 0.0

    def check(self, variants, variant, seed, longest):
        configuration = Configuration(variant, seed, longest)
        call = configuration.call(variants)
        call.run()
        found = configuration.faults()
        if configuration.config["by_roles"]:
            first = [x.clone() for x, _ in configuration.gradients]
            call.run()
            again = [x for x, _ in configuration.gradients]
            if not all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(first, again, strict=True)):
                found.append("not the same bits again")
        self.count += 1
        self.worst = max(self.worst, configuration.worst)
        if found:
            self.failures += 1
            print(f"seed {seed}: {'; '.join(found)}: {configuration}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--configurations", type=int, default=20, help="of each variant")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--longest", type=int, default=600)
    parser.add_argument("--names", default="")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no new configuration after so long")
    arguments = parser.parse_args()
    variants = Variants(arguments.folder)
    names = set(filter(None, arguments.names.split(",")))
    chosen = [v for v in variants.manifest["variants"] if not names or v["name"] in names]
    tallies = {i: Tally() for i in range(len(chosen))}
    start = time.time()
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.configurations):
        for i, variant in enumerate(chosen):
            if time.time() - start < arguments.seconds:
                tallies[i].check(variants, variant, seed * 1000 + i, arguments.longest)
    for i, variant in enumerate(chosen):
        tally = tallies[i]
        print(
            f"{'FAIL' if tally.failures else 'ok  '} {variant['main']['cubin']:60s} {tally.count} configurations, "
            f"{tally.failures} failed, worst {tally.worst:.2f} of the bound"
        )
    sys.exit(1 if any(t.failures for t in tallies.values()) else 0)


if __name__ == "__main__":
    main()
