#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Appends of new keys and values to caches on the GPU: the bits of the CPU engine, and their time.

Needs a GPU and PyTorch; STROBE_LIBRARY and STROBE_HEADER as strobe_api.py says. With --speed large appends are compared
with a copy of as many bytes, and the appends of decode steps with the same by PyTorch's operators.
"""

import argparse
import itertools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "gpu"))
import strobe_api
from timing import median_milliseconds

FP8 = torch.float8_e4m3fn


class Case:
    """New rows for `batch` sequences that have `length` rows, and the cache that they go to."""

    def __init__(self, batch, count, length, *, dtype=torch.bfloat16, cache=None, heads=(32, 8), head_dim=128,
                 page_size=16, rotation=None, rotary_dim=None, queries=False, packed=False,
                 row_scales=False):  # fmt: skip
        cache = cache or dtype
        heads_q, heads_kv = heads
        self.name = f"{batch} x {count} rows, {dtype} to {cache}, {heads} heads of {head_dim}, pages of {page_size}"
        self.name += f", {rotation}" + ", q" * queries + ", packed" * packed + ", scales of rows" * row_scales
        rows = (batch * count,) if packed else (batch, count)
        k, v = (torch.randn(*rows, heads_kv, head_dim, device="cuda").to(dtype) for _ in "kv")
        capacity = length + count
        options = {}
        if page_size:
            per_sequence = -(-capacity // page_size)
            shape = (batch * per_sequence, page_size)
            table = torch.randperm(batch * per_sequence, device="cuda").int().view(batch, per_sequence)
            options["page_table"] = table
        else:
            shape = (batch, capacity)
        self.caches = [torch.zeros(*shape, heads_kv, head_dim, device="cuda").to(cache) for _ in "kv"]
        lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
        if packed:
            options["cu_seqlens_new"] = torch.arange(0, batch * count + 1, count, dtype=torch.int32, device="cuda")
        self.read = [k, v]
        self.written = [x.to(cache) if cache.itemsize > 1 else x.to(torch.int8) for x in (k, v)]
        if rotation:
            pairs = (rotary_dim or head_dim) // 2
            angles = torch.outer(torch.arange(float(capacity)), 10000.0 ** -(torch.arange(pairs) / pairs)).cuda()
            options |= {"cos": angles.cos(), "sin": angles.sin(), "interleaved": int(rotation == "interleaved")}
            if queries:
                q = torch.randn(*rows, heads_q, head_dim, device="cuda").to(dtype)
                options |= {"q": q, "q_out": torch.empty_like(q)}
                if packed:
                    options["cu_seqlens_q"] = options["cu_seqlens_new"]
                self.read.append(q)
                self.written.append(options["q_out"])
        if row_scales:
            options |= {f"{x}_row_descale": torch.zeros(shape[0], heads_kv, shape[1], device="cuda") for x in "kv"}
            self.written += [x[..., 0].float() for x in (k, v)]
        elif cache.itemsize == 1:
            scale = torch.full((1, heads_kv, 1), 0.03, device="cuda")
            options |= {"k_descale": scale, "v_descale": scale}
        self.arguments = (*self.caches, k, v, lengths)
        self.options = options
        self.append = strobe_api.Append(*self.arguments, **options)

    @property
    def bytes(self):
        return sum(x.numel() * x.element_size() for x in (*self.read, *self.written))

    def check(self):
        """False where a bit differs from the CPU engine's."""
        on_cpu = [x.cpu() for x in self.arguments]
        options = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in self.options.items()}
        strobe_api.Append(*on_cpu, **options).run()
        self.append.run()
        pairs = [*zip(on_cpu[:2], self.caches, strict=True)]
        outputs = [name for name in ("q_out", "k_row_descale", "v_row_descale") if name in options]
        pairs += [(options[name], self.options[name]) for name in outputs]
        good = all(torch.equal(x.view(torch.uint8), y.cpu().view(torch.uint8)) for x, y in pairs)
        if not good:
            print(f"WRONG {self.name}", flush=True)
        return good


def cases():
    dtypes = [torch.bfloat16, torch.float16, torch.float32]
    for dtype, rotation, packed in itertools.product(dtypes, (None, "halves", "interleaved"), (False, True)):
        for cache, row_scales in ((dtype, False), *itertools.product((torch.int8, FP8), (False, True))):
            yield (3, 37, 50), {
                "dtype": dtype, "cache": cache, "rotation": rotation, "queries": True, "packed": packed,
                "row_scales": row_scales,
            }  # fmt: skip
    for page_size in (0, 1, 100):
        yield (64, 1, 99), {"page_size": page_size, "rotation": "halves", "rotary_dim": 64, "queries": True}
    yield (5, 9, 3), {"head_dim": 40, "rotation": "halves", "rotary_dim": 20, "queries": True}
    yield (5, 9, 3), {"head_dim": 33, "rotation": "interleaved", "rotary_dim": 20, "queries": True}


def check_all():
    good = [Case(*arguments, **options).check() for arguments, options in cases()]
    print(f"{sum(good)} of {len(good)} appends have the bits of the CPU engine", flush=True)
    return all(good)


def in_graph(run, count):
    """`count` times in a CUDA graph: the time of kernels, without the host's."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            run()
    return graph.replay


def by_operators(case):
    """The same append by PyTorch's operators, without rotation."""
    k_cache, v_cache, k, v, lengths = case.arguments
    table = case.options["page_table"].long()
    page_size = k_cache.shape[1]
    step = torch.arange(k.shape[1], device="cuda")

    def run():
        row = lengths[:, None].long() + step
        page = table.gather(1, row // page_size)
        k_cache[page, row % page_size] = k
        v_cache[page, row % page_size] = v

    return run


def measure_large():
    """Gigabytes a second, read and written, over those of a copy."""
    for options in (
        {"page_size": 0},
        {},
        {"page_size": 1},
        {"packed": True},
        {"rotation": "halves"},
        {"rotation": "halves", "queries": True},
        {"rotation": "interleaved", "queries": True},
        {"cache": torch.int8},
        {"cache": FP8},
        {"cache": FP8, "rotation": "halves"},
        {"cache": torch.int8, "row_scales": True},
        {"cache": FP8, "row_scales": True},
        {"cache": FP8, "rotation": "halves", "row_scales": True},
        {"dtype": torch.float32, "cache": torch.bfloat16},
        {"head_dim": 64, "heads": (64, 8), "rotation": "halves"},
    ):
        case = Case(16, 4096, 100, **options)
        half = torch.empty(case.bytes // 2, dtype=torch.uint8, device="cuda")
        other = torch.empty_like(half)
        times = median_milliseconds({"append": case.append.run, "copy": lambda a=half, b=other: b.copy_(a)}, 10, 5)
        rate = case.bytes / times["append"] / 1e6
        print(f"{rate:7.0f} GB/s, {times['copy'] / times['append']:.3f} of a copy's  {case.name}", flush=True)


def measure_decode(launches=50):
    """Microseconds of a kernel in a graph of many, and of the same by PyTorch's operators."""
    for batch, options in itertools.product(
        (1, 32, 256, 1024),
        ({}, {"rotation": "halves", "queries": True}, {"rotation": "halves", "queries": True, "packed": True}),
    ):
        case = Case(batch, 1, 1000, **options)
        tiny = torch.zeros(32, device="cuda")
        runs = {"append": case.append.run, "fill": tiny.zero_}
        if not options:
            runs["operators"] = by_operators(case)
        times = median_milliseconds({name: in_graph(run, launches) for name, run in runs.items()}, 10, 5)
        text = ", ".join(f"{name} {1e3 * time / launches:.2f} us" for name, time in times.items())
        print(f"{text}  {case.name}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="measure, too")
    parser.add_argument("--only-speed", action="store_true", help="measure large appends alone")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    if arguments.only_speed:
        return measure_large()
    good = check_all()
    if arguments.speed:
        measure_large()
        measure_decode()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
