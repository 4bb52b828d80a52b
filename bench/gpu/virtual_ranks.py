# SPDX-License-Identifier: Apache-2.0
"""The ranks of context parallelism on one device, one after another, with copies as transport.

    python bench/gpu/virtual_ranks.py OUT.json [--ranks 2 4 8] [--tokens 8192] [--heads 32 8 128] [--rounds 5]

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
from threading import Condition, Thread
from types import SimpleNamespace

import strobe
import strobe.torch
import torch
from strobe import _core
from strobe.torch.context_parallel import gather, shared
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

    needs_input_grad = (False, True, True, True, False, False)

    def set_materialize_grads(self, value):
        pass

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors


class Recorded:
    """The engine, whose launches are kept by the rank that is running."""

    merge = _core.merge

    def __init__(self):
        self.launches = None

    def forward(self, *arguments, **options):
        self._launch(_core.forward, arguments, options)

    def backward(self, *arguments, **options):
        self._launch(_core.backward, arguments, options)

    def _launch(self, function, arguments, options):
        function(*arguments, **options)
        self.launches[-1].append(lambda: function(*arguments, **options))


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
    """The median of all launches in a row. A GPU waits until the host has queued them."""
    times = []
    for _ in range(rounds + 1):
        if ON_GPU:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(2_000_000)
            begin.record()
        start = time.perf_counter()
        for launch in launches:
            launch()
        if ON_GPU:
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
    batched = tensors[0].dim() == 4
    dim, launches = int(batched), {name: [[] for _ in range(layout.world)] for name in PASSES}
    engine = Recorded()
    gather._core = shared._core = engine
    options = call_options({"causal": True}, layout, batched)
    places = [torch.cat([torch.arange(*run) for run in layout.places(rank)]) for rank in range(layout.world)]
    parts = [[x.index_select(dim, rows.to(DEVICE)) for x in tensors] for rows in places]
    contexts = [Context() for _ in range(layout.world)]

    def forward(rank, group):
        call = shared.SharedCall(group, rank, layout, options)
        return gather.GatherAttention.forward(contexts[rank], call, *parts[rank][:3], None, None)[0]

    def backward(rank, group):
        contexts[rank].call = shared.SharedCall(group, rank, layout, options)
        return gather.GatherAttention.backward(contexts[rank], parts[rank][3], None)[1:4]

    results = []
    for name, compute in zip(PASSES, (forward, backward), strict=True):
        results.append(in_turn(layout.world, recorded(engine, launches[name], compute)))
    return places, [[o, *gradients] for o, gradients in zip(*results, strict=True)], launches


def recorded(engine, launches, compute):
    """compute(), whose launches are those of its rank, although ranks wait for one another."""

    def of_rank(rank, group):
        class Mine:
            merge = _core.merge

        def launch(function):
            def called(*arguments, **options):
                function(*arguments, **options)
                launches[rank].append(lambda: function(*arguments, **options))

            return called

        return compute(rank, group)

    return of_rank


def main():
    pass


if __name__ == "__main__":
    main()
