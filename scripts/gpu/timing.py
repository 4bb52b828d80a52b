# SPDX-License-Identifier: Apache-2.0
"""Calls timed in turns, so that all see the same clocks."""

import statistics

import torch


def launches_for(flops):
    """Enough launches of a call for a median, few enough for a turn of a millisecond or so."""
    return max(2, min(10, int(2e12 / flops)))


def captured(run, launches=1):
    """A CUDA graph of that many launches: no host time in what its replay takes."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            run()

    def replay(_tensors_live_with=run):
        graph.replay()

    return replay


def copy_by_kernel():
    """A launch that copies 1 GiB, and the bytes that it moves.

    A kernel does it: in a graph copy_() is a copy engine's, which takes half as long again.
    """
    source = torch.zeros(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return captured(lambda: torch.neg(source, out=target)), 2 * source.nbytes


def median_milliseconds(runs, rounds, launches):
    """By name: the median between CUDA events over `rounds` turns of `launches` launches each.

    Each turn begins with another call, as what follows a slow one finds a cooler GPU.
    """
    times = {name: [] for name in runs}
    names = list(runs)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            run = runs[name]
            run()
            events = [
                (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(launches)
            ]
            for start, end in events:
                start.record()
                run()
                end.record()
            torch.cuda.synchronize()
            times[name] += [start.elapsed_time(end) for start, end in events]
    return {name: statistics.median(values) for name, values in times.items()}
