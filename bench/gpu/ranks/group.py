# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: each one's device, what they agree on, and how long their calls take."""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

SINGLE, IN_A_ROW, AHEAD = "single", "in a row", "host ahead"
IN_A_GRAPH = "in a graph"
WAYS = (SINGLE, IN_A_ROW, AHEAD)
ROUNDS, REPEATED = 5, 3
LONG_MS = 100.0  # the host is ahead of longer calls, which are measured one by one
_HOST_CYCLES = 20_000_000  # for which the GPU waits: more than the host takes for three calls


class Ranks:
    """All processes of torchrun, with NCCL and a GPU each, or gloo and the CPU, which have so many seconds."""

    def __init__(self, device: str, seconds: float) -> None:
        self._end = time.time() + seconds
        if device == "cuda":
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self.device)
            priority = "STROBE_HIGH_PRIORITY" in os.environ
            settings = distributed.ProcessGroupNCCL.Options(is_high_priority_stream=priority)
            distributed.init_process_group("nccl", device_id=self.device, pg_options=settings)
        else:
            self.device = torch.device("cpu")
            distributed.init_process_group("gloo")
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()

    @property
    def on_gpus(self) -> bool:
        return self.device.type == "cuda"

    def agreed(self, value: float) -> float:
        """Rank 0's."""
        number = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.broadcast(number, 0)
        return number.item()

    def largest(self, values: list[float]) -> list[float]:
        """Of each over all ranks."""
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(numbers, distributed.ReduceOp.MAX)
        return numbers.tolist()

    def left(self) -> float:
        """Seconds, the same on every rank."""
        return self.agreed(self._end - time.time())

    def synchronize(self) -> None:
        if self.on_gpus:
            torch.cuda.synchronize()

    def elapsed(self, call: Callable[[], Any], repeats: int = 1, ahead: bool = False) -> float:
        """Milliseconds of a call, of several in a row, where all ranks begin at once."""
        distributed.barrier()
        self.synchronize()
        if not self.on_gpus:
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return (time.perf_counter() - start) / repeats * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if ahead:
            torch.cuda._sleep(_HOST_CYCLES)
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / repeats

    def milliseconds(self, call: Callable[[], Any]) -> dict[str, float]:
        """Medians of the slowest rank: of one call behind a barrier, which has the host's time for its first launch in
        it; of each of several in a row; and of those where the host has queued them before the first begins, as a
        training step's host is ahead. A long call has one time for all three, and so has a CPU's."""
        call()
        first = self.largest([self.elapsed(call)])[0]
        rounds = int(max(1, min(ROUNDS, 4000 // first))) if self.on_gpus else 1
        if first > LONG_MS or not self.on_gpus:
            times = [self.elapsed(call) for _ in range(rounds)]
            return dict.fromkeys(WAYS, round(self.largest([statistics.median(times)])[0], 3))
        rows = [
            (self.elapsed(call), self.elapsed(call, REPEATED), self.elapsed(call, REPEATED, ahead=True))
            for _ in range(rounds + 1)
        ]
        medians = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
        return {way: round(x, 3) for way, x in zip(WAYS, self.largest(medians), strict=True)}

    def gathered(self, value: Any) -> list[Any]:
        """Every rank's."""
        values = [None] * self.world
        distributed.all_gather_object(values, value)
        return values
