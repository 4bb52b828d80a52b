# SPDX-License-Identifier: Apache-2.0
"""Context parallelism on the GPUs of one host, beside one of them: right, and how fast of what would be ideal.

    torchrun --nproc-per-node 2 bench/gpu/context_parallel.py OUT.json [tokens a GPU ...]

bfloat16, 32 query heads, 8 key heads, head_dim 128. Each scheme and layout is compared with one GPU, which computes the
whole sequence; then forward and both passes are timed. Ideal is one GPU's time for the whole sequence divided by the
number of GPUs. Medians of the slowest rank, in milliseconds: of one call behind a barrier, which has the host's time
for its first launch in it; of each of several calls in a row; and of each of those where the host has queued them
before the first begins, as a training step's host is ahead. With STROBE_HIGH_PRIORITY in the environment messages
travel on a stream of high priority.
"""

import itertools
import json
import os
import statistics
import sys
from contextlib import contextmanager
from pathlib import Path

import strobe
import strobe.torch
import torch
from strobe.torch.context_parallel import groups as head_groups
from strobe.torch.context_parallel import launches
from torch import distributed

HEADS, HEADS_KV, HEAD_DIM = 32, 8, 128
TOKENS = (8192, 32768)  # a GPU
WINDOW = (4095, 0)
LAYOUTS, SCHEMES = ("zigzag", "contiguous", "documents"), ("gather", "all_to_all", "ring")
IN_A_ROW, AHEAD = 3, -3
_HOST_CYCLES = 20_000_000  # for which the GPU waits: more than the host takes for three calls


def draw(rows, batch=1, dtype=torch.bfloat16):
    """q, k, v and the gradient of out, the same on every rank."""
    generator = torch.Generator(device="cuda").manual_seed(rows)
    shapes = (HEADS, HEADS_KV, HEADS_KV, HEADS)
    lead = (rows,) if batch is None else (batch, rows)
    return [torch.randn(*lead, heads, HEAD_DIM, device="cuda", dtype=dtype, generator=generator) for heads in shapes]


def documents(rows):
    """Lengths of a pack: a few long documents and many short ones."""
    generator, lengths = torch.Generator().manual_seed(7), []
    while sum(lengths) < rows:
        length = int(torch.randn((), generator=generator).mul(1.2).add(7).exp()) + 1
        lengths.append(min(length, rows - sum(lengths)))
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return ends


def with_gradients(attention, q, k, v, d_o, **options):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = attention(*leaves, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, d_o)]


def one_gpu(ends, options):
    """Options of the same call by one GPU."""
    if ends is None:
        return options
    cu_seqlens = torch.tensor(ends, dtype=torch.int32, device="cuda")
    longest = max(b - a for a, b in itertools.pairwise(ends))
    lengths = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
    return options | lengths | {"max_seqlen_q": longest, "max_seqlen_k": longest}


CASES = {
    "causal": (4096, False, {"causal": True}),
    "causal, odd length": (4099, False, {"causal": True}),
    "no mask": (4096, False, {}),
    "window": (4096, False, {"causal": True, "window": (1000, 0)}),
    "softcap": (4096, False, {"causal": True, "softcap": 20.0}),
    "row-invariant": (4096, False, {"causal": True, "row_invariant": True}),
    "deterministic": (4096, False, {"causal": True, "deterministic": True}),
    "documents": (4096, True, {"causal": True}),
    "row-invariant documents": (4096, True, {"causal": True, "row_invariant": True}),
}


def errors(mine, whole):
    """Of out and gradients, in the largest of each."""
    of_each = (((a.float() - b.float()).abs().max() / b.float().abs().max()) for a, b in zip(mine, whole, strict=True))
    worst = torch.stack(list(of_each))
    distributed.all_reduce(worst, distributed.ReduceOp.MAX)
    return [f"{x:.1e}" for x in worst.tolist()]


def check(name, rows, is_packed, options):
    ends = documents(rows) if is_packed else None
    dim = 0 if is_packed else 1
    q, k, v, d_o = draw(rows, None if is_packed else 1)
    whole = with_gradients(strobe.torch.attention, q, k, v, d_o, **one_gpu(ends, options))
    results = {}
    ways = [(layout, scheme, "") for layout, scheme in itertools.product(LAYOUTS, SCHEMES)]
    for layout, scheme, way in ways + [("zigzag", "gather", way) for way in WAYS if way]:
        cp = strobe.torch.ContextParallel(layout=layout, scheme=scheme)
        parts = [cp.shard(x, dim, cu_seqlens=ends) for x in (q, k, v, d_o)]
        try:
            with chosen(**WAYS[way]):
                mine, again = (with_gradients(cp.attention, *parts, **options) for _ in range(2))
        except Exception as error:  # what a case says is a result, too
            results[f"{layout}, {scheme}{way}"] = f"{type(error).__name__}: {error}"[:300]
            continue
        wanted = [cp.shard(x, dim, cu_seqlens=ends) for x in whole]
        results[f"{layout}, {scheme}{way}"] = {
            "errors": errors(mine, wanted),
            "same bits": bool(torch.equal(mine[0], wanted[0])),
            "same bits again": all(map(torch.equal, again, mine)),
        }
    return {name: results}


def milliseconds(call, rounds=5):
    """The medians of the slowest rank: of one call, of each of several in a row, and of each of those with the host
    ahead, as it is in a training step."""
    times = {1: [], IN_A_ROW: [], AHEAD: []}
    for _ in range(rounds + 2):
        for calls, of_calls in times.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            distributed.barrier()
            torch.cuda.synchronize()
            if calls == AHEAD:
                torch.cuda._sleep(_HOST_CYCLES)
            begin.record()
            for _ in range(abs(calls)):
                call()
            end.record()
            torch.cuda.synchronize()
            of_calls.append(begin.elapsed_time(end) / abs(calls))
    worst = torch.tensor([statistics.median(x[2:]) for x in times.values()], device="cuda")
    distributed.all_reduce(worst, distributed.ReduceOp.MAX)
    return worst.tolist()


def both(attention, q, k, v, d_o, options):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return lambda: torch.autograd.grad(attention(*leaves, **options), leaves, d_o)


def forward(attention, q, k, v, options):
    def call():
        with torch.no_grad():
            return attention(q, k, v, **options)

    return call


def timed(rows, ends, options, layouts, schemes, ways=("",)):
    """Of the whole sequence by one GPU, then of each layout and scheme, with its share of ideal."""
    world, dim = distributed.get_world_size(), 1 if ends is None else 0
    q, k, v, d_o = draw(rows, 1 if ends is None else None)
    alone = one_gpu(ends, options)
    passes = ("forward", "both")
    one = (
        milliseconds(forward(strobe.torch.attention, q, k, v, alone)),
        milliseconds(both(strobe.torch.attention, q, k, v, d_o, alone)),
    )
    results = {"one GPU": {name: [round(x, 3) for x in whole] for name, whole in zip(passes, one, strict=True)}}
    for layout, scheme in itertools.product(layouts, schemes):
        for way in ways if scheme == "gather" else ("",):
            cp = strobe.torch.ContextParallel(layout=layout, scheme=scheme)  # which remembers what it chose
            parts = [cp.shard(x, dim, cu_seqlens=ends) for x in (q, k, v, d_o)]
            with chosen(**WAYS[way]):
                try:
                    shared = (
                        milliseconds(forward(cp.attention, *parts[:3], options)),
                        milliseconds(both(cp.attention, *parts, options)),
                    )
                except (NotImplementedError, RuntimeError) as error:
                    results[f"{layout}, {scheme}{way}"] = str(error)[:300]
                    continue
            results[f"{layout}, {scheme}{way}"] = {
                name: [f"{mine:.3f} ms, {ideal / world / mine:.1%}" for ideal, mine in zip(*of_pass, strict=True)]
                for name, *of_pass in zip(passes, one, shared, strict=True)
            }
            results[f"{layout}, {scheme}, explained"] = cp.explain()
    return results


WAYS = {
    "": {},
    ", two groups of heads": {"groups": 0},
    ", one group of heads": {"groups": 1 << 60},
    ", one launch for a rank's rows in both": {"joined": True},
    ", a launch for each run of rows in both": {"joined": False},
}


@contextmanager
def chosen(joined=None, groups=None):
    """What gather does otherwise, to see what each choice is worth."""
    settings = (head_groups.HIDDEN_BYTES, head_groups.COPIED_BYTES, launches.JOINED_ON_GPUS)
    kept = [dict(x) for x in settings]
    if groups is not None:
        head_groups.HIDDEN_BYTES.update(forward=groups, backward=groups)
        head_groups.COPIED_BYTES.update(forward=groups, backward=groups)  # a backward has one group otherwise
    if joined is not None:
        launches.JOINED_ON_GPUS.update(forward=joined, backward=joined)
    try:
        yield
    finally:
        for setting, before in zip(settings, kept, strict=True):
            setting.clear()
            setting.update(before)


def decode(keys=1 << 20):
    """A query over a cache of a million keys, half of which each of two ranks has."""
    world, rank = distributed.get_world_size(), distributed.get_rank()
    q, k, v, _ = draw(keys)
    q, lengths = q[:, :1].contiguous(), torch.tensor([keys - 3], dtype=torch.int32, device="cuda")
    own = [x[:, rank::world].contiguous() for x in (k, v)]
    cp = strobe.torch.ContextParallel()

    def one():
        return strobe.attention(q, k, v, seqused_k=lengths, return_lse=True)

    def shared():
        return cp.decode(q, *own, lengths)

    whole, mine = one(), shared()
    alone, together = milliseconds(one), milliseconds(shared)
    return {
        "one GPU": [round(x, 3) for x in alone],
        "shared": [f"{x:.3f} ms, {a / x:.2f} x" for a, x in zip(alone, together, strict=True)],
        "errors": errors(mine, whole),
    }


def trace(rows, path):
    """A timeline of one forward and backward, for a profiler's viewer."""
    cp = strobe.torch.ContextParallel(scheme="gather")
    parts = [cp.shard(x) for x in draw(rows)]
    call = both(cp.attention, *parts, {"causal": True})
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    if distributed.get_rank() == 0:
        events = [x for x in profile.events() if x.device_type == torch.autograd.DeviceType.CUDA]
        first = min(x.time_range.start for x in events)
        lines = [
            f"{x.time_range.start - first:9.1f} {x.time_range.elapsed_us():8.1f} us {x.name[:90]}"
            for x in sorted(events, key=lambda x: x.time_range.start)
        ]
        path.write_text("\n".join(lines) + "\n")


def main():
    out = Path(sys.argv[1])
    tokens = list(map(int, sys.argv[2:])) or TOKENS
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    settings = distributed.ProcessGroupNCCL.Options(is_high_priority_stream="STROBE_HIGH_PRIORITY" in os.environ)
    distributed.init_process_group("nccl", device_id=device, pg_options=settings)
    world = distributed.get_world_size()
    results = {"device": torch.cuda.get_device_name(), "GPUs": world, "torch": torch.__version__}

    def save(name, value):
        results[name] = value
        if distributed.get_rank() == 0:
            out.write_text(json.dumps(results, indent=1) + "\n")
            sys.stdout.write(f"{name}: {json.dumps(value, indent=1)}\n")
            sys.stdout.flush()

    for name, case in CASES.items():
        save(f"check {name}", check(name, *case))
    save("decode over 1M keys", decode())
    for per_gpu in tokens:
        rows = per_gpu * world
        trace(rows, out.with_suffix(f".{per_gpu}.timeline.txt"))
        save(f"causal, {per_gpu} a GPU", timed(rows, None, {"causal": True}, ("zigzag",), SCHEMES, WAYS))
        windowed = {"causal": True, "window": WINDOW}
        save(f"window, {per_gpu} a GPU", timed(rows, None, windowed, ("contiguous", "zigzag"), SCHEMES))
        packed = timed(rows, documents(rows), {"causal": True}, ("documents", "zigzag"), SCHEMES)
        save(f"documents, {per_gpu} a GPU", packed)
        steady = timed(rows, None, {"causal": True, "deterministic": True}, ("zigzag",), ("gather",))
        save(f"deterministic, {per_gpu} a GPU", steady)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
