#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the sm90 forward on this machine's GPU, through the C ABI, and prints a short table.

Random configurations over every option against float64 (per-element bound, canaries around the output, poisoned
outputs and unused rows), values that are not finite in masked keys, the same bits again, replays of a CUDA graph, two
streams at once, and one call with more than 2^31 elements.

Usage: check_forward.py [--configurations N] [--first-seed S] [--stride N] [--longest L] [--quick]
A failing seed is printed with its configuration.
"""

import argparse
import math
import random
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "gpu"))
from cases import CANARY, PAD, Side, random_tensor
from reference import attention, bound
from strobe_api import Forward


class Configuration:
    """One seed's call. FAMILY consecutive seeds share what kernels are compiled for."""

    FAMILY = 16

    def __init__(self, seed, longest):
        family, rng = random.Random(seed // self.FAMILY), random.Random(seed)
        self.rng = rng
        torch.manual_seed(seed)
        self.dtype = family.choice([torch.bfloat16, torch.float16])
        self.head_dim, self.head_dim_v = self.head_dims(family, rng)
        self.heads_kv = rng.choice([1, 2, 3])
        self.heads = self.heads_kv * family.choice([1, 1, 2, 4, 6, 8])
        batch = rng.choice([1, 2, 3])
        self.causal = family.choice([None, None, "bottom_right", "bottom_right", "top_left"])
        windowed = family.random() < 0.4
        left, right = family.random() < 0.8, family.random() < 0.8
        self.window = (rng.randrange(300) if left else -1, rng.randrange(300) if right else -1) if windowed else None
        self.softcap = rng.choice([5.0, 30.0]) if family.random() < 0.3 else 0.0
        self.scale = rng.choice([0.0, -0.2]) if family.random() < 0.25 else rng.choice([None, 0.3, 1.0])
        chunked = family.random() < 0.2
        self.chunk = rng.choice([1, rng.randrange(2, 300), rng.randrange(2, longest)]) if chunked else 0
        self.has_alibi, self.has_sink, self.has_max_logits = (family.random() < 0.25 for _ in range(3))

        few = family.random() < 0.3  # queries: so that heads share tiles

        def length(most):
            return rng.choice([0, 1, rng.randrange(1, 130), rng.randrange(1, most), rng.randrange(1, most), 128])

        sides = []
        for most in (60 if few else longest, longest):
            packed, used = family.random() < 0.3, family.random() < 0.2
            same = length(most)
            lengths = [length(most) for _ in range(batch)] if packed else [same] * batch
            sides.append(Side(rng, lengths, packed, used, rng.choice([0, 0, 5, 200])))
        self.q_side, self.k_side = sides
        self.make_tensors()

    @staticmethod
    def head_dims(family, rng):
        """Compiled sizes, and narrower heads that they pad."""
        compiled = family.choice(
            [
                (32, 32),
                (64, 64),
                (64, 64),
                (96, 96),
                (128, 128),
                (128, 128),
                (192, 128),
                (192, 192),
                (256, 256),
                (64, 256),
            ]
        )
        next_smaller = {32: 0, 64: 32, 96: 64, 128: 96, 192: 128, 256: 192}
        return tuple(rng.choice([size, size, rng.randrange(next_smaller[size] + 8, size + 1, 8)]) for size in compiled)

    def make_tensors(self):
        padded = self.rng.random() < 0.3
        self.q = random_tensor(self.q_side.shape(self.heads, self.head_dim), self.dtype, padded)
        self.k = random_tensor(self.k_side.shape(self.heads_kv, self.head_dim), self.dtype, padded)
        self.v = random_tensor(self.k_side.shape(self.heads_kv, self.head_dim_v), self.dtype, padded)
        shape = self.q_side.shape(self.heads, self.head_dim_v)
        self.framed = torch.full((*shape[:-1], shape[-1] + PAD), CANARY, device="cuda", dtype=self.dtype)
        self.o = self.framed[..., PAD // 2 : PAD // 2 + shape[-1]]
        rows = (self.heads, shape[0]) if self.q_side.packed else (shape[0], self.heads, shape[1])
        self.lse = torch.full(rows, CANARY, device="cuda")
        self.slopes = self.sink = self.max_logits = None
        if self.has_max_logits:
            self.max_logits = torch.full((len(self.q_side.lengths), self.heads + 1), CANARY, device="cuda")[:, 1:]
        if self.has_alibi:
            per_batch = (len(self.q_side.lengths),) if self.rng.random() < 0.5 else ()
            self.slopes = torch.randn(*per_batch, self.heads, device="cuda") * self.rng.choice([0.01, 0.3])
        if self.has_sink:
            self.sink = torch.randn(self.heads, device="cuda") * self.rng.choice([1.0, 10.0])
        self.poison_unused()
        self.masked_nan = (self.causal or self.window or self.chunk) and self.rng.random() < 0.3
        if self.masked_nan:
            i = self.rng.randrange(len(self.k_side.lengths))
            if self.k_side.used[i] > 0:
                key = self.rng.randrange(self.k_side.used[i])
                self.k_side.of(self.v, i)[key] = self.rng.choice([math.nan, math.inf])

    def poison_unused(self):
        """What no sequence uses may hold anything."""
        for side, tensors in ((self.q_side, [self.q]), (self.k_side, [self.k, self.v])):
            for tensor in tensors:
                if side.packed:
                    tensor[side.starts[-1] :] = math.nan
                for i, used in enumerate(side.used):
                    side.of(tensor, i)[used:] = math.nan

    def options(self):
        q, k = self.q_side, self.k_side
        return dict(
            causal=self.causal,
            window=self.window,
            softcap=self.softcap,
            scale=self.scale,
            chunk=self.chunk,
            alibi_slopes=self.slopes,
            sink=self.sink,
            max_logits=self.max_logits,
            cu_seqlens_q=q.cu_seqlens,
            cu_seqlens_k=k.cu_seqlens,
            seqused_q=q.seqused,
            seqused_k=k.seqused,
            max_seqlen_q=max(q.lengths) if q.packed else 0,
            max_seqlen_k=max(k.lengths) if k.packed else 0,
        )

    def run(self):
        Forward(self.q, self.k, self.v, self.o, self.lse, **self.options()).run()

    def band(self):
        left, right = self.window if self.window else (-1, -1)
        right = None if right < 0 else right
        return dict(
            left=None if left < 0 else left,
            right=0 if self.causal else right,
            bottom_right=self.causal != "top_left",
            chunk=self.chunk,
        )

    def faults(self):
        """What is wrong with the result, in words; empty if nothing."""
        found = []
        frame = self.framed.reshape(-1, self.framed.shape[-1])
        if frame.numel() and not (
            (frame[:, : PAD // 2] == CANARY).all() and (frame[:, PAD // 2 + self.head_dim_v :] == CANARY).all()
        ):
            found.append("wrote outside o")
        for i, used in enumerate(self.q_side.used):
            o = self.q_side.of(self.o, i)
            start = self.q_side.starts[i]
            lse = self.lse[:, start : start + o.shape[0]] if self.q_side.packed else self.lse[i]
            if not ((o[used:] == 0).all() and (lse[:, used:] == -math.inf).all()):
                found.append("unused rows are not O = 0, LSE = -inf")
            found += self.faults_of(i, o[:used], lse[:, :used])
        if self.q_side.packed and not (self.o[self.q_side.starts[-1] :] == 0).all():
            found.append("rows behind the last sequence are not 0")
        return found

    def faults_of(self, i, o, lse):
        used = self.k_side.used[i]
        scale = self.scale if self.scale is not None else self.head_dim**-0.5
        q = self.q_side.of(self.q, i)[: self.q_side.used[i]]
        k, v = self.k_side.of(self.k, i)[:used], self.k_side.of(self.v, i)[:used]
        slopes = self.slopes if self.slopes is None or self.slopes.dim() == 1 else self.slopes[i]
        want, want_lse, p_abs_v, want_max = attention(
            q, k, v, scale=scale, softcap=self.softcap, alibi_slopes=slopes, sink=self.sink, **self.band()
        )
        found = []
        if not (torch.isfinite(o) == torch.isfinite(want)).all():
            found.append("values that are not finite in the wrong places")
        # Scores: float32 sums of head_dim products, then one multiplication and the exponent's own rounding.
        norms = (
            (q.double().norm(dim=-1).max() * k.double().norm(dim=-1).max()).item() if q.numel() and k.numel() else 0.0
        )
        score_error = 2.0**-22 * (1 + abs(scale) * norms) * (1 if not self.softcap else 2)
        if slopes is not None:  # the slope's product, its own rounding and the difference
            score_error += 2.0**-22 * slopes.abs().max().item() * (q.shape[0] + k.shape[0])
        if self.sink is not None:
            score_error += 2.0**-22 * self.sink.abs().max().item()
        both = torch.isfinite(o) & torch.isfinite(want)
        ratio = ((o.double() - want).abs() / bound(want, p_abs_v, self.dtype, score_error))[both]
        self.worst = max(getattr(self, "worst", 0.0), ratio.max().item() if ratio.numel() else 0.0)
        if not self.worst <= 1:
            found.append(f"error {self.worst:.2f} of the bound")
        distance = torch.where(want_lse == lse, 0.0, (lse.double() - want_lse).abs())
        if distance.numel() and not distance.max().item() <= 2 * score_error + 2.0**-20:
            found.append(f"LSE off by {distance.max().item():.1e}")
        if self.max_logits is not None:
            distance = torch.where(want_max == self.max_logits[i], 0.0, (self.max_logits[i].double() - want_max).abs())
            if not distance.max().item() <= 2 * score_error + 2.0**-20:
                found.append(f"max_logits off by {distance.max().item():.1e}")
        return found

    def __str__(self):
        return (
            f"{self.dtype} head_dim {self.head_dim}/{self.head_dim_v} heads {self.heads}/{self.heads_kv} "
            f"causal {self.causal} window {self.window} chunk {self.chunk} softcap {self.softcap} scale {self.scale} "
            f"alibi {None if self.slopes is None else list(self.slopes.shape)} sink {self.sink is not None} "
            f"max {self.has_max_logits} "
            f"q {self.q_side.lengths} used {self.q_side.used} packed {self.q_side.packed} "
            f"k {self.k_side.lengths} used {self.k_side.used} packed {self.k_side.packed}"
        )


def random_configurations(first, count, stride, longest):
    failures, worst = 0, 0.0
    for seed in range(first, first + count * stride, stride):
        configuration = Configuration(seed, longest)
        configuration.run()
        found = configuration.faults()
        worst = max(worst, getattr(configuration, "worst", 0.0))
        if found:
            failures += 1
            print(f"seed {seed}: {'; '.join(found)}: {configuration}", flush=True)
    return failures == 0, f"{count} from seed {first}, worst {worst:.2f} of the bound, {failures} failed"


def plain_case(batch, seqlen, heads, head_dim, dtype=torch.bfloat16):
    q, k, v = (torch.randn(batch, seqlen, heads, head_dim, device="cuda", dtype=dtype) for _ in range(3))
    return q, k, v, torch.empty_like(q), torch.empty(batch, heads, seqlen, device="cuda")


def repeatability(times):
    same = True
    for head_dim in (64, 128, 256):
        for causal in (None, "bottom_right"):
            q, k, v, o, lse = plain_case(2, 1900, 4, head_dim)
            forward = Forward(q, k, v, o, lse, causal=causal)
            forward.run()
            first, first_lse = o.clone(), lse.clone()
            for _ in range(times):
                o.fill_(math.nan)
                forward.run()
                same &= torch.equal(o, first) and torch.equal(lse, first_lse)
    return same, f"{times} times, 6 shapes, bit by bit"


def graph_replay(times):
    q, k, v, o, lse = plain_case(2, 1000, 4, 128)
    forward = Forward(q, k, v, o, lse, causal="bottom_right")
    forward.run()
    want = o.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward.run()
    same = True
    for i in range(times):
        if i % 100 == 0:
            o.fill_(math.nan)
        graph.replay()
        if i % 100 == 99:
            same &= torch.equal(o, want)
    return same, f"{times} replays of one captured graph"


def two_streams(times):
    cases = [plain_case(1, 3000, 8, d) for d in (64, 128)]
    plans = [Forward(*case, causal="bottom_right") for case in cases]
    for plan in plans:
        plan.run()
    want = [case[3].clone() for case in cases]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in cases]
    same = True
    for _ in range(times):
        for stream, plan in zip(streams, plans, strict=True):
            with torch.cuda.stream(stream):
                plan.run()
    torch.cuda.synchronize()
    for case, o in zip(cases, want, strict=True):
        same &= torch.equal(case[3], o)
    return same, f"{times} calls on each of two"


def large_tensors():
    """Offsets beyond 2^31 elements: a last row far into the tensor, against the same rows alone."""
    batch, seqlen, heads, head_dim = 9, 32768, 64, 128
    q, k, v, o, lse = plain_case(batch, seqlen, heads, head_dim)
    Forward(q, k, v, o, lse, causal="bottom_right").run()
    rows, head = 96, heads - 1
    want, want_lse, p_abs_v, _ = attention(
        q[-1, -rows:, head:], k[-1, :, head:], v[-1, :, head:], right=0, scale=head_dim**-0.5
    )
    error = (o[-1, -rows:, head:].double() - want).abs() / bound(want, p_abs_v, q.dtype, 2.0**-18)
    close = error.max().item() <= 1 and (lse[-1, head, -rows:].double() - want_lse[0]).abs().max().item() < 1e-4
    return close, f"{q.numel() / 2**31:.2f} x 2^31 elements a tensor, seqlen {seqlen}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configurations", type=int, default=3000)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--longest", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="random configurations only, as for a sanitizer")
    arguments = parser.parse_args()
    checks = [
        (
            "random configurations",
            lambda: random_configurations(
                arguments.first_seed, arguments.configurations, arguments.stride, arguments.longest
            ),
        )
    ]
    if not arguments.quick:
        checks += [
            ("the same bits", lambda: repeatability(100)),
            ("CUDA graph", lambda: graph_replay(1000)),
            ("two streams", lambda: two_streams(100)),
            ("large tensors", large_tensors),
        ]
    well = True
    for name, function in checks:
        start = time.time()
        passed, words = function()
        well &= passed
        print(f"{'ok  ' if passed else 'FAIL'}  {name:24s}{words}, {time.time() - start:.1f} s", flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
