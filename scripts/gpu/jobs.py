#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the checks and measurements of a kit (scripts/gpu/kit.sh) on all GPUs of this machine at once.

    scripts/gpu/jobs.py kit.tar.xz --minutes 30 --out results
    scripts/gpu/jobs.py kit.tar.xz --minutes 9 --only 'GpuBackward.*' --only random --out results
    scripts/gpu/jobs.py kit.tar.xz --dry-run      # on a machine without a GPU: is all there that the jobs name?

Jobs are those of jobs.toml. Each GPU runs several correctness jobs at a time (--per-gpu), by default as many as it has
cores, at most 16; none runs beside a measurement. Whatever would not end within --minutes is not started, and what does
not end by then, or in four times its estimate, is killed and named. OUT gets results.json, table.txt, logs.tar.xz and
files.tar.xz, what jobs wrote. --times takes an earlier results.json for the estimates. Ends with 1 if a job failed or
was killed, with 3 if none did and some were not run for lack of time.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import job_list
import job_report
from job_list import Job
from job_schedule import Gpu, Machine, Result, Schedule

PACKING = 10  # seconds that are kept for the logs


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kit", type=Path, help="what kit.sh packed, or the folder that it was unpacked to")
    parser.add_argument("--minutes", type=float, default=60, help="for all jobs, from the program's start")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="jobs in whose name this is found")
    parser.add_argument("--without", action="append", default=[], metavar="PATTERN", help="jobs that are left out")
    parser.add_argument("--first", action="append", default=[], metavar="PATTERN", help="jobs that are run first")
    parser.add_argument("--gpus", default="all", help="all, none, or their numbers: 0,2")
    parser.add_argument("--per-gpu", type=int, help="correctness jobs on a GPU at a time")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--times", type=Path, help="results.json of an earlier run")
    parser.add_argument("--jobs", type=Path, help="another jobs.toml than the kit's")
    parser.add_argument("--list", action="store_true", help="print the jobs, run none")
    parser.add_argument("--dry-run", action="store_true", help="check that the kit has every file of every job")
    return parser.parse_args()


def unpacked(kit: Path, work: Path) -> Path:
    if kit.is_dir():
        return kit.resolve()
    with tarfile.open(kit) as archive:
        archive.extractall(work / "kit", filter="tar")
    return work / "kit"


def devices(wanted: str) -> tuple[list[str], list[str]]:
    """The GPUs that jobs may have, and what nvidia-smi says of each: name, memory, driver, compute capability."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
    known: list[str] = []
    if wanted != "none" and shutil.which(query[0]):
        result = subprocess.run(query, capture_output=True, text=True, check=False)
        known = result.stdout.splitlines() if result.returncode == 0 else []
    if wanted == "none":
        return [], []
    if wanted == "all":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return (visible.split(",") if visible else [str(number) for number in range(len(known))]), known
    return wanted.split(","), known


def chosen(jobs: list[Job], options: argparse.Namespace) -> list[Job]:
    def found(patterns: list[str], job: Job) -> bool:
        return any(re.search(pattern, job.name) for pattern in patterns)

    jobs = [x for x in jobs if (not options.only or found(options.only, x)) and not found(options.without, x)]
    for job in jobs:
        if found(options.first, job):
            job.priority = 0
    return jobs


def missing(kit: Path, jobs: list[Job]) -> list[str]:
    """What jobs name and the kit lacks, and shared libraries that its programs would not find."""
    roots, complaints = {path.name for path in kit.iterdir()} | {"build", "site"}, set()
    environment = os.environ | variables(kit)
    for job in jobs:
        words = job_list.named_files(job, roots)
        complaints |= {f"{job.name}: {word} is not in the kit" for word in words if not (kit / word).exists()}
        program = kit / job.command[0]
        if job.command[0] in words and program.exists():
            if not os.access(program, os.X_OK):
                complaints.add(f"{job.name}: {job.command[0]} is no program")
            loaded = subprocess.run(["ldd", program], capture_output=True, text=True, check=False, env=environment)
            lines = [line.split()[0] for line in loaded.stdout.splitlines() if "not found" in line]
            complaints |= {f"{job.command[0]}: {library} is not in the kit" for library in lines}
    for word in ("include/strobe/strobe.h", "include/strobe/strobe_sparse.h", "build/release/lib/libstrobe.so"):
        if not (kit / word).exists():
            complaints.add(f"{word} is not in the kit")
    return sorted(complaints)


def variables(kit: Path) -> dict[str, str]:
    """Of every job: programs, packages and libraries are the kit's."""

    def paths(name: str, *own: str) -> str:
        return ":".join([*(str(kit / folder) for folder in own), *filter(None, [os.environ.get(name)])])

    return {
        "LD_LIBRARY_PATH": paths("LD_LIBRARY_PATH", "build/release/lib", "lib"),
        "PYTHONPATH": paths("PYTHONPATH", "site", "python/vllm_backend"),
        "STROBE_LIBRARY": f"{kit}/build/release/lib/libstrobe.so",
        "PYTHONUNBUFFERED": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


class Run:
    """Starts jobs and keeps what they leave: a log each, files, and a row of the table."""

    def __init__(self, kit: Path, work: Path, out: Path, about: dict) -> None:
        self.kit, self.work, self.out, self.about = kit, work, out, about
        self.rows: list[dict] = []
        for folder in ("logs", "files", "kernels"):
            (work / folder).mkdir()
        out.mkdir(parents=True, exist_ok=True)
        self.environment = os.environ | variables(kit) | {"STROBE_CACHE_DIR": str(work / "kernels")}

    def start(self, job: Job, gpus: list[Gpu]) -> subprocess.Popen:
        files = self.work / "files" / job.name
        files.mkdir()
        names = [gpu.name for gpu in gpus if gpu.name]
        command, more = job.filled(files, len(names))
        cores = set().union(*(gpu.cores for gpu in gpus))
        environment = self.environment | {"CUDA_VISIBLE_DEVICES": ",".join(names)} | more
        if not job.exclusive:  # references in NumPy and PyTorch; the library's own threads are idle most of the time
            environment.setdefault("OMP_NUM_THREADS", "2")
        with (self.work / "logs" / f"{job.name}.log").open("w") as log:
            return subprocess.Popen(
                command,
                cwd=self.kit,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )

    def ended(self, result: Result) -> None:
        log = self.work / "logs" / f"{result.job.name}.log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        self.rows.append(job_report.row(result, text))
        row = self.rows[-1]
        if row["status"] not in ("skipped", "not run"):
            words = row["words"] if row["status"] != "passed" else ""
            print(f"{row['status']:8}{row['name']}  {row['seconds']:.1f} s  {words}".rstrip(), flush=True)
        self.save()

    def save(self) -> None:
        """After every job: a run that is cut off leaves what it has."""
        record = self.about | {"results": job_report.ordered(self.rows)}
        for name, text in (
            ("results.json", json.dumps(record, indent=1) + "\n"),
            ("table.txt", job_report.table(self.rows)),
        ):
            new = self.out / f".{name}"
            new.write_text(text, encoding="utf-8")
            new.replace(self.out / name)

    def pack(self) -> None:
        for name in ("logs", "files"):
            with tarfile.open(self.out / f"{name}.tar.xz", "w:xz", preset=1) as archive:
                archive.add(self.work / name, name)


def listing(jobs: list[Job]) -> str:
    lines = []
    for job in sorted(jobs, key=lambda x: (x.priority, x.name)):
        how = "timing" if job.timing else "exclusive" if job.exclusive else "shared"
        lines.append(f"{job.priority}  {job.name:44} {job.seconds:5.0f} s  {job.gpus} GPU {how:9} {job.family}")
    total = sum(job.seconds * max(1, job.gpus if job.exclusive else 0) for job in jobs)
    return "\n".join([*lines, f"{len(jobs)} jobs, {total / 60:.0f} minutes one after another"])


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    begin = time.time()
    options = parse()
    signal.signal(signal.SIGTERM, interrupt)
    with tempfile.TemporaryDirectory(prefix="strobe-jobs-") as folder:
        work = Path(folder)
        kit = unpacked(options.kit, work)
        about = json.loads((kit / "kit.json").read_text(encoding="utf-8"))
        times = job_report.times(options.times) if options.times else None
        jobs = chosen(job_list.load(options.jobs or kit / "scripts/gpu/jobs.toml", about.pop("tests"), times), options)
        if options.dry_run:
            complaints = missing(kit, jobs)
            print("\n".join([*complaints, f"{len(jobs)} jobs, {len(complaints)} complaints"]))
            return 1 if complaints else 0
        if options.list:
            print(listing(jobs))
            return 0
        return run(kit, work, jobs, about, begin, options)


def run(kit: Path, work: Path, jobs: list[Job], about: dict, begin: float, options: argparse.Namespace) -> int:
    gpus, known = devices(options.gpus)
    cores = len(os.sched_getaffinity(0))
    slots = options.per_gpu or min(16, max(1, cores // max(1, len(gpus))))
    capability = known[0].rpartition(", ")[2] if known else ""
    about = {"kit": about, "devices": known, "gpus": gpus, "cores": cores, "slots": slots, "minutes": options.minutes}
    started = Run(kit, work, options.out.resolve(), about | {"started": time.strftime("%Y-%m-%d %H:%M:%S")})
    print(f"{len(jobs)} jobs on {len(gpus)} GPUs, {slots} at a time on each, {options.minutes:g} minutes", flush=True)
    possible = []
    for job in jobs:
        reason = job_list.why_not(job, len(gpus), capability)
        if reason is None:
            possible.append(job)
        else:
            started.ended(Result(job, "skipped", reason))
    deadline = begin + 60 * options.minutes - min(PACKING, 6 * options.minutes)
    try:
        Schedule(Machine(gpus, slots), possible, deadline, started.start, started.ended).run()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    started.save()
    started.pack()
    print("\n" + job_report.brief(started.rows), end="")
    statuses = {x["status"] for x in started.rows}
    return 1 if statuses & {"failed", "killed"} else 3 if "not run" in statuses else 0


if __name__ == "__main__":
    sys.exit(main())
