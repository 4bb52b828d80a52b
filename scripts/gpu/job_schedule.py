# SPDX-License-Identifier: Apache-2.0
"""Runs jobs on all GPUs of a machine at once, and ends before a deadline."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from job_list import Job

TERMINATION = 5.0  # seconds between SIGTERM and SIGKILL
_POLL = 0.05


@dataclass
class Result:
    """`status`: failed, killed, not run, skipped or passed."""

    job: Job
    status: str
    words: str = ""
    start: float = 0.0
    seconds: float = 0.0
    gpus: list[str] = field(default_factory=list)


@dataclass
class Gpu:
    name: str
    cores: set[int]
    free: int
    alone: bool = False
    """Whether a job has it for itself."""


@dataclass
class Running:
    job: Job
    process: subprocess.Popen
    gpus: list[Gpu]
    start: float


class Machine:
    """The GPUs, each with a share of the cores and a number of slots; jobs without a GPU have slots of their own."""

    def __init__(self, gpus: Sequence[str], slots: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // max(1, len(gpus)))
        starts = [number * share % len(cores) for number in range(len(gpus))]
        self.slots = slots
        self.gpus = [Gpu(name, set(cores[a : a + share]), slots) for name, a in zip(gpus, starts, strict=True)]
        self.host = Gpu("", set(cores), slots)

    def places(self, job: Job, reserved: Sequence[Gpu] = ()) -> list[Gpu]:
        """Where a job can start now; empty if nowhere."""
        if job.gpus == 0:
            return [self.host] if self.host.free >= min(job.slots, self.slots) else []
        possible = [gpu for gpu in self.gpus if not gpu.alone and gpu not in reserved and self._fits(job, gpu)]
        possible.sort(key=lambda gpu: -gpu.free)
        return possible[: job.gpus] if len(possible) >= job.gpus else []

    def emptiest(self, job: Job) -> list[Gpu]:
        """The GPUs that are kept free for a job until it can start."""
        return sorted(self.gpus, key=lambda gpu: -gpu.free)[: job.gpus]

    def take(self, job: Job, gpus: list[Gpu]) -> None:
        for gpu in gpus:
            gpu.free -= self._slots(job)
            gpu.alone = job.exclusive and job.gpus > 0

    def give_back(self, job: Job, gpus: list[Gpu]) -> None:
        for gpu in gpus:
            gpu.free += self._slots(job)
            gpu.alone = False

    def _slots(self, job: Job) -> int:
        return self.slots if job.exclusive and job.gpus else min(job.slots, self.slots)

    def _fits(self, job: Job, gpu: Gpu) -> bool:
        return gpu.free >= self._slots(job)


def order(job: Job) -> tuple:
    """By priority; within it what is measured last, and the longest first."""
    return job.priority, job.timing, -job.gpus if job.exclusive else 0, -job.seconds, job.name


class Schedule:
    """`start(job, gpus)` starts a process in a session of its own; `ended(result)` is told of every job."""

    def __init__(
        self,
        machine: Machine,
        jobs: Sequence[Job],
        deadline: float,
        start: Callable[[Job, list[Gpu]], subprocess.Popen],
        ended: Callable[[Result], None],
    ) -> None:
        self.machine, self.deadline, self.start, self.ended = machine, deadline, start, ended
        self.pending = sorted(jobs, key=order)
        self.running: list[Running] = []

    def run(self) -> None:
        """Until all jobs have ended, or the deadline."""
        try:
            while self.pending or self.running:
                self._collect()
                self._start_what_fits()
                if time.time() >= self.deadline:
                    self._end(self.running, "when the time was over")
                time.sleep(_POLL)
        finally:  # interrupted: nothing is left behind
            self._end(self.running, "as the run was interrupted")
            for job in self.pending:
                self.ended(Result(job, "not run", "the run was interrupted"))

    def _start_what_fits(self) -> None:
        reserved: list[Gpu] = []
        measuring_next = False
        for job in list(self.pending):
            left = self.deadline - time.time()
            if job.seconds > left:
                self.pending.remove(job)
                words = f"would take {job.seconds:.0f} s, {max(0.0, left):.0f} s before the end"
                self.ended(Result(job, "not run", words))
                continue
            # None beside a measurement: those that came first end, and no other starts before it.
            if any(other.job.timing != job.timing for other in self.running) or (measuring_next and not job.timing):
                measuring_next |= job.timing
                continue
            gpus = self.machine.places(job, reserved)
            if gpus:
                self._start(job, gpus)
            elif job.exclusive or job.gpus > 1 or job.slots > 1:
                reserved += self.machine.emptiest(job)

    def _start(self, job: Job, gpus: list[Gpu]) -> None:
        self.pending.remove(job)
        self.machine.take(job, gpus)
        start = time.time()
        try:
            process = self.start(job, gpus)
        except OSError as error:
            self.machine.give_back(job, gpus)
            self.ended(Result(job, "failed", f"does not start: {error}"))
            return
        self.running.append(Running(job, process, gpus, start))

    def _collect(self) -> None:
        now = time.time()
        for running in list(self.running):
            code = running.process.poll()
            if code is not None:
                words = "" if code == 0 else f"signal {-code}" if code < 0 else f"exit status {code}"
                self._finish(running, "passed" if code == 0 else "failed", words)
        self._end([x for x in self.running if now - x.start > x.job.limit], "at its limit")

    def _end(self, ones: Sequence[Running], when: str) -> None:
        ones = list(ones)
        families = [descendants(running.process.pid) for running in ones]
        for running in ones:
            with suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGTERM)
        until = time.time() + TERMINATION
        while time.time() < until and any(running.process.poll() is None for running in ones):
            time.sleep(_POLL)
        for running, family in zip(ones, families, strict=True):
            with suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
            for process, began in family:
                if _stat(process)[1] == began:  # and is no later one of the same number
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            running.process.wait()
            self._finish(running, "killed", f"{when}, after {time.time() - running.start:.0f} s")

    def _finish(self, running: Running, status: str, words: str) -> None:
        self.running.remove(running)
        self.machine.give_back(running.job, running.gpus)
        names = [gpu.name for gpu in running.gpus if gpu.name]
        seconds = time.time() - running.start
        self.ended(Result(running.job, status, words, running.start, seconds, names))


def _stat(process: int) -> tuple[int, int]:
    """A process's parent and when it began; zeros where there is none."""
    try:
        fields = Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0
    return int(fields[1]), int(fields[19])


def descendants(process: int) -> list[tuple[int, int]]:
    """Those of a process, and when they began: some may have left its group, as torchrun's do."""
    children: dict[int, list[tuple[int, int]]] = {}
    for number in [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]:
        parent, began = _stat(number)
        children.setdefault(parent, []).append((number, began))
    found = list(children.get(process, []))
    for one, _ in found:  # grows as it is walked
        found += children.get(one, [])
    return found
