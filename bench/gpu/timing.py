# SPDX-License-Identifier: Apache-2.0
"""What the GPU benchmarks share: calls timed in turns, so that all see the same clocks."""

import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
from strobe_api import Forward

__all__ = ["Forward", "median_milliseconds"]


def median_milliseconds(runs, rounds, launches):
    """By name: the median between CUDA events over `rounds` turns of `launches` launches each."""
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
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
