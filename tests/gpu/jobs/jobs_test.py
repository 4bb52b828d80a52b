# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu/jobs.py with small shell commands: what runs beside what, in which order, and what a reader is told."""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "scripts" / "gpu" / "jobs.py"

# Each writes when it began and ended, and on which GPUs.
SHELL = "date +%s.%N >{{out}}/begin; echo $CUDA_VISIBLE_DEVICES >{{out}}/gpus; {shell}; date +%s.%N >{{out}}/end"
JOB = f"""[[job]]
name = "{{name}}"
command = "sh -c '{SHELL}'"
seconds = {{seconds}}
"""


def job(name, shell="sleep 0.2", seconds=0.2, **settings):
    fields = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return JOB.format(name=name, shell=shell, seconds=seconds) + "\n".join(fields) + "\n"


class Kit:
    """A folder with the files that jobs.py reads, and what it made of a run."""

    def __init__(self, folder, *jobs):
        self.kit, self.out = folder / "kit", folder / "out"
        (self.kit / "scripts" / "gpu").mkdir(parents=True)
        (self.kit / "kit.json").write_text(json.dumps({"version": "0", "tests": {}}))
        (self.kit / "scripts" / "gpu" / "jobs.toml").write_text("\n".join(jobs))

    def run(self, *arguments, minutes=1.0):
        command = [sys.executable, PROGRAM, self.kit, "--out", self.out, "--minutes", str(minutes), *arguments]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)

    def read(self):
        self.results = json.loads((self.out / "results.json").read_text())["results"]
        self.status = {x["name"]: x["status"] for x in self.results}
        self.times = {}
        with tarfile.open(self.out / "files.tar.xz") as archive:
            for member in archive.getmembers():
                if member.isfile():
                    _, name, file = member.name.split("/")
                    self.times.setdefault(name, {})[file] = archive.extractfile(member).read().decode().strip()
        return self

    def span(self, name):
        return float(self.times[name]["begin"]), float(self.times[name]["end"])

    def overlap(self, a, b):
        (a_begin, a_end), (b_begin, b_end) = self.span(a), self.span(b)
        return a_begin < b_end and b_begin < a_end

    def gpus(self, name):
        return set(filter(None, self.times[name]["gpus"].split(",")))


def check_what_runs_beside_what(folder):
    shared = [f"shared-{i}" for i in range(6)]
    kit = Kit(
        folder,
        *(job(name, priority=1) for name in shared),
        job("two", gpus=2, priority=2),
        job("alone", exclusive=True, priority=2),
        *(job(f"timing-{i}", timing=True, priority=3) for i in range(2)),
        job("host", gpus=0, priority=1),
        job("many", gpus=3),
        job("without", needs=["program:no-such-program"]),
    )
    result = kit.run("--gpus", "0,1", "--per-gpu", "2")
    assert result.returncode == 0, result.stdout + result.stderr
    kit.read()
    names = [name for name, status in kit.status.items() if status == "passed"]
    assert kit.status["many"] == kit.status["without"] == "skipped" and len(names) == len(kit.status) - 2
    assert "needs 3 GPUs" in result.stdout and "needs the program no-such-program" in result.stdout
    for name in names:
        beside = [x for x in names if x != name and kit.overlap(x, name)]
        on_these = [x for x in beside if kit.gpus(x) & kit.gpus(name)]
        assert len(on_these) <= 2 * len(kit.gpus(name)), "more than two on a GPU"
        if name == "alone":
            assert not on_these
        if name.startswith("timing"):
            assert all(x.startswith("timing") for x in beside) and not on_these
    assert kit.gpus("two") == {"0", "1"} and kit.gpus("host") == set()
    assert {tuple(kit.gpus(name)) for name in shared} == {("0",), ("1",)}
    assert kit.overlap("timing-0", "timing-1"), "measurements on two GPUs run at once"


def check_order(folder):
    kit = Kit(
        folder,
        job("short", "true", seconds=1),
        job("long", "true", seconds=9),
        job("urgent", "true", seconds=2, priority=1),
        job("first", "true", seconds=1, priority=9),
    )
    assert kit.run("--gpus", "0", "--per-gpu", "1", "--first", "^fir").returncode == 0
    kit.read()
    assert sorted(kit.times, key=lambda name: kit.span(name)[0]) == ["first", "urgent", "long", "short"]


def check_endings(folder):
    """Failures, what hangs with children that left its group, and what would not end in time."""
    hang = "echo begun; setsid sleep 4321 & sleep 4321"
    kit = Kit(
        folder,
        job("fine", "true"),
        job("broken", "echo what happened; exit 7"),
        job("hangs", hang, limit=0.5),
        job("too-long", seconds=600),
        job("at-the-end", "trap : TERM; sleep 9", seconds=0.5),
    )
    start = time.monotonic()
    result = kit.run("--gpus", "0", "--per-gpu", "8", minutes=0.04)
    assert time.monotonic() - start < 9
    assert result.returncode == 1
    kit.read()
    assert list(kit.status.values()) == ["failed", "killed", "killed", "not run", "passed"], "failures come first"
    by_name = {x["name"]: x for x in kit.results}
    assert "exit status 7" in by_name["broken"]["words"] and "what happened" in by_name["broken"]["tail"]
    assert "at its limit" in by_name["hangs"]["words"] and "begun" in by_name["hangs"]["tail"]
    assert "when the time was over" in by_name["at-the-end"]["words"]
    assert "would take 600 s" in by_name["too-long"]["words"]
    left = subprocess.run(["pgrep", "-f", "^sleep 4321$"], capture_output=True, text=True, check=False).stdout
    assert not left, "what hangs has left processes behind"
    assert len(list(kit.out.iterdir())) <= 8
    with tarfile.open(kit.out / "logs.tar.xz") as archive:
        assert "logs/broken.log" in archive.getnames()
    text = (kit.out / "table.txt").read_text()
    assert text.startswith("1 failed, 2 killed, 1 not run, 1 passed\nfailed  broken")


def check_interruption(folder):
    started = folder / "started"
    kit = Kit(folder, job("slow", f"touch {started}; sleep 60", seconds=60), job("next", priority=9))
    command = [sys.executable, PROGRAM, kit.kit, "--out", kit.out, "--minutes", "5", "--gpus", "0", "--per-gpu", "1"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        while not started.exists():
            time.sleep(0.02)
        process.terminate()
        process.communicate()
    assert process.returncode == 1
    assert kit.read().status == {"slow": "killed", "next": "not run"}


def check_dry_run(folder):
    missing = '[[job]]\nname = "missing"\ncommand = "scripts/gpu/none.sh tests/a.py::test {out}"\nseconds = 1\n'
    kit = Kit(folder, job("there"), missing)
    result = kit.run("--dry-run")
    assert result.returncode == 1
    for words in ("missing: scripts/gpu/none.sh is not in the kit", "include/strobe/strobe_sparse.h is not in the kit"):
        assert words in result.stdout, result.stdout
    assert "there:" not in result.stdout


def main():
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    checks = [check_what_runs_beside_what, check_order, check_endings, check_interruption, check_dry_run]
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))


if __name__ == "__main__":
    main()
