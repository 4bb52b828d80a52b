# SPDX-License-Identifier: Apache-2.0
"""Steps of a server on a GPU: serving.py [OUT.json]

Mixed batches: chunks of prompts and decodes in one packed call over pages, beside a call of each kind. Shared prefixes:
strobe.shared_prefix_attention beside the plain call. Decode steps: append and attention, beside attention alone, and
flash_attn_with_kvcache of the drop-in beside itself where pages are copied first, as for engines that read none. Times
are medians between CUDA events over CUDA graphs, all in turns.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import flash_attn
import strobe
import torch
from strobe.integrations import kv_cache

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
from timing import captured

HEADS, HEADS_KV, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16
DTYPE = torch.bfloat16


def medians(runs, rounds=15, launches=5):
    """Microseconds by name."""
    times = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            run()
            events = [[torch.cuda.Event(enable_timing=True) for _ in "be"] for _ in range(launches)]
            for begin, end in events:
                begin.record()
                run()
                end.record()
            torch.cuda.synchronize()
            if turn > 0:
                times[name] += [1e3 * begin.elapsed_time(end) for begin, end in events]
    return {name: statistics.median(values) for name, values in times.items()}


def microseconds(run, calls=100, loops=10):
    """The host's time of a call: the least of some loops."""

    def loop():
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return time.perf_counter() - start

    return 1e6 * min(loop() for _ in range(loops)) / calls


def draw(*shape):
    return torch.randn(*shape, device="cuda").to(DTYPE)


def integers(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


class Pages:
    """A cache of sequences of the given lengths."""

    def __init__(self, lengths):
        self.most = -(-max(lengths) // PAGE_SIZE)
        pages = sum(-(-length // PAGE_SIZE) for length in lengths)
        self.k, self.v = (draw(pages, PAGE_SIZE, HEADS_KV, HEAD_DIM) for _ in "kv")
        order = iter(torch.randperm(pages).tolist())
        rows = [[next(order) for _ in range(-(-length // PAGE_SIZE))] for length in lengths]
        self.table = integers([row + [0] * (self.most - len(row)) for row in rows])
        self.lengths = integers(lengths)


def packed_call(cache, counts, first, last):
    """Attention of sequences [first, last), of which each has counts[i] queries."""
    own = counts[first:last]
    q = draw(sum(own), HEADS, HEAD_DIM)
    o = torch.empty_like(q)
    cu_seqlens = integers([sum(own[:i]) for i in range(len(own) + 1)])
    options = {
        "cu_seqlens_q": cu_seqlens,
        "max_seqlen_q": max(own),
        "page_table": cache.table[first:last],
        "seqused_k": cache.lengths[first:last],
        "causal": True,
    }
    return captured(lambda: strobe.attention(q, cache.k, cache.v, out=o, **options))


def measure_mixed(chunks, chunk, before, decodes, keys):
    """`chunks` chunks of `chunk` queries behind `before` keys, and `decodes` of one query with `keys` keys."""
    counts = [chunk] * chunks + [1] * decodes
    cache = Pages([before + chunk] * chunks + [keys] * decodes)
    runs = {
        "one call": packed_call(cache, counts, 0, len(counts)),
        "chunks": packed_call(cache, counts, 0, chunks),
        "decodes": packed_call(cache, counts, chunks, len(counts)),
    }
    times = medians(runs)
    ratio = times["one call"] / (times["chunks"] + times["decodes"])
    print(
        f"{chunks} chunks of {chunk} behind {before}, {decodes} decodes of {keys} keys: one call "
        f"{times['one call']:.1f} us, apart {times['chunks']:.1f} + {times['decodes']:.1f} us: {ratio:.3f}",
        flush=True,
    )
    return times


def measure_prefix(sequences, prefix, own):
    cache = Pages([prefix + own] * sequences)
    shared = prefix // PAGE_SIZE
    table = cache.table.clone()
    table[:, :shared] = table[:1, :shared]
    q = draw(sequences, 1, HEADS, HEAD_DIM)
    options = {"page_table": table, "seqused_k": cache.lengths, "causal": True}
    runs = {
        "shared": captured(lambda: strobe.shared_prefix_attention(q, cache.k, cache.v, prefix_pages=shared, **options)),
        "plain": captured(lambda: strobe.attention(q, cache.k, cache.v, **options)),
    }
    times = medians(runs)
    shared_o = strobe.shared_prefix_attention(q, cache.k, cache.v, prefix_pages=shared, **options)
    apart = (shared_o.float() - strobe.attention(q, cache.k, cache.v, **options).float()).abs().max()
    print(
        f"{sequences} sequences with {prefix} shared keys and {own} of their own: {times['shared']:.1f} us, plain "
        f"{times['plain']:.1f} us: {times['plain'] / times['shared']:.2f} x, apart by up to {apart:.1e}",
        flush=True,
    )
    return times


def measure_step(batch, keys):
    """A decode step of one layer."""
    cache = Pages([keys] * batch)
    q, k, v = (draw(batch, 1, heads, HEAD_DIM) for heads in (HEADS, HEADS_KV, HEADS_KV))
    angles = torch.outer(torch.arange(float(keys)), 10000.0 ** -(torch.arange(HEAD_DIM // 2) / 64)).cuda()
    before = cache.lengths - 1
    q_out, o = torch.empty_like(q), torch.empty_like(q)
    rotation = {"cos": angles.cos(), "sin": angles.sin(), "q": q, "q_out": q_out}

    def append():
        strobe.append(cache.k, cache.v, k, v, before, page_table=cache.table, **rotation)

    def attend():
        strobe.attention(q_out, cache.k, cache.v, page_table=cache.table, seqused_k=cache.lengths, causal=True, out=o)

    def both():
        append()
        attend()

    times = medians({"attention": captured(attend), "append and attention": captured(both)})
    text = ", ".join(f"{name} {time:.1f} us" for name, time in times.items())
    print(f"decode of {batch} x {keys} keys: {text}", flush=True)
    return times


def measure_drop_in(batch, keys):
    """A decode step of one layer by the drop-in, and the host's time for it."""
    cache = Pages([keys] * batch)
    q, k, v = (draw(batch, 1, heads, HEAD_DIM) for heads in (HEADS, HEADS_KV, HEADS_KV))
    angles = torch.outer(torch.arange(float(keys)), 10000.0 ** -(torch.arange(HEAD_DIM // 2) / 64)).cuda()
    rotary = {"rotary_cos": angles.cos().to(DTYPE), "rotary_sin": angles.sin().to(DTYPE), "rotary_interleaved": False}
    before = cache.lengths - 1

    def step():
        flash_attn.flash_attn_with_kvcache(
            q, cache.k, cache.v, k, v, cache_seqlens=before, block_table=cache.table, causal=True, **rotary
        )

    runs = {"in place": captured(step)}
    host = microseconds(step)
    in_place, kv_cache.reads_in_place = kv_cache.reads_in_place, lambda q, cache: False
    runs["copied"] = captured(step)
    kv_cache.reads_in_place = in_place
    times = medians(runs)
    print(
        f"flash_attn_with_kvcache of {batch} x {keys} keys: {times['in place']:.1f} us, pages copied first "
        f"{times['copied']:.1f} us; {host:.1f} us of the host",
        flush=True,
    )
    return times | {"host": host}


def main():
    torch.manual_seed(0)
    results = {}
    for shape in ((2, 512, 2048, 64, 4096), (1, 2048, 0, 32, 8192), (4, 1024, 8192, 128, 2048), (1, 512, 0, 256, 1024)):
        results[f"mixed {shape}"] = measure_mixed(*shape)
    for shape in ((32, 32768, 128), (8, 8192, 128), (64, 2048, 512)):
        results[f"prefix {shape}"] = measure_prefix(*shape)
    for shape in ((1, 4096), (64, 4096), (256, 1024)):
        results[f"step {shape}"] = measure_step(*shape)
    for shape in ((1, 4096), (64, 4096)):
        results[f"drop-in {shape}"] = measure_drop_in(*shape)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
