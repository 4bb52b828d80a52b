# SPDX-License-Identifier: Apache-2.0
"""The ranks of context parallelism on one device, one after another, with copies as transport.

    python bench/gpu/virtual_ranks.py OUT.json [--ranks 2 4 8] [--tokens 8192] [--heads 32 8 128] [--rounds 5]
        [--launches one|each]

Each rank computes its part of one causal sequence, or of packed documents, by the scheme gather, forward and backward.
Results are compared with one call. Then the launches of each rank are timed again by themselves: the time that each
rank's kernels take, how much more than the mean the slowest has, and what all have together, of one call's time. On a
GPU tensors are bfloat16, elsewhere float32. The program fails where results differ by more than roundings do.
"""

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict, deque
from itertools import accumulate
from pathlib import Path
from threading import Condition, Thread, local
from types import SimpleNamespace

import strobe
import strobe.torch
import torch
from strobe import _core
from strobe.torch.context_parallel import gather, shared, streams
from strobe.torch.context_parallel.launches import JOINED_ON_GPUS
from strobe.torch.context_parallel.layout import imbalance, layout_of
from strobe.torch.context_parallel.parts import call_options

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DTYPE, LARGEST_ERROR = (torch.bfloat16, 0.02) if ON_GPU else (torch.float32, 1e-5)
LAYOUTS = ("zigzag", "contiguous", "documents")
PASSES = ("forward", "backward")


class Transport:
    """Messages between ranks that are threads, of which one runs at a time: others wait for messages or their turn."""

    def __init__(self):
        self.turn = Condition()
        self.sent = defaultdict(deque)


class Rank:
    """What the scheme takes for a process group. Sends keep the tensor, as it is not written again; receives copy."""

    supports_coalescing = False

    def __init__(self, transport, rank):
        self._transport, self._rank = transport, rank

    def rank(self):
        return self._rank

    def _get_backend(self, device):
        return self

    def send(self, tensors, peer, tag):
        self._transport.sent[self._rank, peer].append(tensors[0])
        self._transport.turn.notify_all()
        return SimpleNamespace(wait=lambda: None)

    def recv(self, tensors, peer, tag):
        messages = self._transport.sent[peer, self._rank]

        def wait():
            self._transport.turn.wait_for(lambda: messages)
            tensors[0].copy_(messages.popleft())

        return SimpleNamespace(wait=wait)


class Context:
    """What a torch.autograd.Function keeps for its backward."""

    needs_input_grad = (False, False, True, True, True, False, False)

    def set_materialize_grads(self, value):
        pass

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors


class Recorded:
    """The engine, whose launches each rank keeps."""

    def __init__(self):
        self.of_rank = local()

    def forward(self, *arguments, **options):
        self._launch(_core.forward, arguments, options)

    def backward(self, *arguments, **options):
        self._launch(_core.backward, arguments, options)

    def _launch(self, function, arguments, options):
        function(*arguments, **options)
        self.of_rank.launches.append(lambda: function(*arguments, **options))


def in_turn(world, compute):
    """compute(rank, group) of each rank, which may wait for the others."""
    transport, results, errors = Transport(), [None] * world, []

    def run(rank):
        with transport.turn, torch.no_grad():
            try:
                results[rank] = compute(rank, Rank(transport, rank))
            except Exception as error:  # raised again below
                errors.append(error)

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not errors:
            thread.join(0.05)
    if errors:
        raise errors[0]
    return results


def milliseconds(launches, rounds):
    """The median of all launches in a row, as on the streams of a rank. A GPU waits until the host has queued them."""
    times = []
    for _ in range(rounds + 1):
        if ON_GPU:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(2_000_000)
            begin.record()
            for stream in streams.others():
                stream.wait_event(begin)
        start = time.perf_counter()
        for launch in launches:
            launch()
        if ON_GPU:
            for stream in streams.others():
                torch.cuda.current_stream().wait_stream(stream)
            end.record()
            torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) if ON_GPU else (time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def documents(rows):
    """Lengths of a pack: a few long documents and many short ones."""
    generator, lengths = torch.Generator().manual_seed(7), []
    while sum(lengths) < rows:
        length = int(torch.randn((), generator=generator).mul(1.2).add(7).exp()) + 1
        lengths.append(min(length, rows - sum(lengths)))
    return tuple(lengths)


def one_call(tensors, lengths):
    """Results of the whole, and a launch of each pass."""
    q, k, v, d_o = tensors
    options = {"causal": True}
    if q.dim() == 3:
        ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=DEVICE)
        options |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
        options |= {"max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths)}
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = strobe.torch.attention(*leaves, **options)

    def forward():
        with torch.no_grad():
            strobe.torch.attention(*leaves, **options)

    def backward():
        return torch.autograd.grad(out, leaves, d_o, retain_graph=True)

    return [out.detach(), *backward()], (forward, backward)


def of_ranks(layout, tensors):
    """Each rank's rows, its results, and its launches by pass."""
    batched, engine = tensors[0].dim() == 4, Recorded()
    shared._core = engine
    gather.copies_of = lambda *_: None  # one device has no peers
    options = call_options({"causal": True}, layout, batched)
    places = [torch.cat([torch.arange(*run) for run in layout.places(rank)]) for rank in range(layout.world)]
    parts = [[x.index_select(int(batched), rows.to(DEVICE)) for x in tensors] for rows in places]
    contexts = [Context() for _ in range(layout.world)]

    def forward(rank, call):
        return gather.GatherAttention.forward(contexts[rank], call, None, *parts[rank][:3], None, None)[0]

    def backward(rank, call):
        contexts[rank].call = call  # of this pass's group
        return gather.GatherAttention.backward(contexts[rank], parts[rank][3], None)[2:5]

    def recorded(compute, kept):
        def of_rank(rank, group):
            engine.of_rank.launches = kept[rank]
            return compute(rank, shared.SharedCall(group, rank, layout, options))

        return in_turn(layout.world, of_rank)

    launches = {name: [[] for _ in places] for name in PASSES}
    outputs, gradients = (
        recorded(compute, launches[name]) for name, compute in (("forward", forward), ("backward", backward))
    )
    return places, [[o, *of_rank] for o, of_rank in zip(outputs, gradients, strict=True)], launches


def largest_errors(places, results, whole):
    """Of out and the gradients of q, k and v, in the largest element of each."""
    errors = [0.0] * len(whole)
    for rows, of_rank in zip(places, results, strict=True):
        for i, (mine, all_rows) in enumerate(zip(of_rank, whole, strict=True)):
            wanted = all_rows.index_select(all_rows.dim() - 3, rows.to(DEVICE)).float()
            if wanted.numel():
                largest = all_rows.float().abs().max()
                errors[i] = max(errors[i], float((mine.float() - wanted).abs().max() / largest))
    return errors


def measured(layout, tensors, rounds):
    """As numbers; ValueError where a rank's results are wrong."""
    whole, calls = one_call(tensors, layout.lengths)
    places, results, launches = of_ranks(layout, tensors)
    errors = largest_errors(places, results, whole)
    if not max(errors) <= LARGEST_ERROR:
        raise ValueError(f"{layout.kind}, {layout.world} ranks: errors of out, dq, dk and dv are {errors}")
    result = {"errors of out, dq, dk, dv": [f"{x:.1e}" for x in errors]}
    for name, call in zip(PASSES, calls, strict=True):
        alone = milliseconds([call], rounds)
        ranks = [milliseconds(x, rounds) for x in launches[name]]
        result[name] = {
            "one call, ms": round(alone, 3),
            "ranks, ms": [round(x, 3) for x in ranks],
            "the slowest above the mean": f"{imbalance(ranks):.1%}",
            "all ranks, of one call": round(sum(ranks) / alone, 3),
            "ideal, of the slowest rank": f"{alone / layout.world / max(ranks):.1%}",
        }
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, default=8192, help="of a rank")
    parser.add_argument("--heads", type=int, nargs=3, default=[32, 8, 128], help="query heads, key heads, head_dim")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--launches", choices=("one", "each"), help="for all runs of rows of a rank, or for each")
    arguments = parser.parse_args()
    if arguments.launches:
        JOINED_ON_GPUS.update(dict.fromkeys(PASSES, arguments.launches == "one"))
    heads_q, heads_kv, head_dim = arguments.heads
    device = torch.cuda.get_device_name() if ON_GPU else "CPU"
    results = {"device": device, "tokens of a rank": arguments.tokens, "torch": torch.__version__}
    for world in arguments.ranks:
        rows = world * arguments.tokens
        generator = torch.Generator(device=DEVICE).manual_seed(rows)
        shapes = [(rows, heads, head_dim) for heads in (heads_q, heads_kv, heads_kv, heads_q)]
        tensors = [torch.randn(shape, device=DEVICE, dtype=DTYPE, generator=generator) for shape in shapes]
        for kind in LAYOUTS:
            packed = kind == "documents"
            layout = layout_of(kind, world, documents(rows) if packed else (rows,))
            given = tensors if packed else [x.unsqueeze(0) for x in tensors]
            results[f"{kind}, {world} ranks"] = measured(layout, given, arguments.rounds)
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    sys.stdout.write(arguments.out.read_text())


if __name__ == "__main__":
    main()
