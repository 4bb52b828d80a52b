# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu/jobs.toml: every entry becomes jobs, of files that are in the repository, and of every test once."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "gpu"))
import job_list
import job_report

ROOT = Path(__file__).resolve().parents[3]
JOBS = ROOT / "scripts" / "gpu" / "jobs.toml"
PROGRAM = "build/release/bin/gpu_tests"
BUILT = re.compile(r"build/(release|mutation-gpu/build)/bin(/\w+)?$")


def listed_tests():
    """As `gpu_tests --gtest_list_tests` says them, for those of each family that have no other parameter."""
    names = []
    for path in sorted((ROOT / "tests" / "gpu").glob("*.cpp")):
        text = path.read_text(encoding="utf-8")
        for kind, suite, name in re.findall(r"^TEST(_[FP])?\((\w+), (\w+)\)", text, re.MULTILINE):
            test = f"{suite}.{name}"
            names += [f"{test}/sm90", f"{test}/sm80"] if kind == "_P" else [test]
    return names


def check_files(jobs):
    roots = {path.name for path in ROOT.iterdir()} | {"build"}
    for job in jobs:
        for word in job_list.named_files(job, roots):
            assert (ROOT / word).exists() or BUILT.match(word), f"{job.name} names {word}"
        assert "{" not in " ".join(job.command).replace("{out}", "").replace("{gpus}", "").replace("${", ""), (
            job.command
        )


def check_tests(jobs, names):
    """Each once on tiles of each amount of shared memory; those of tensors that fill a GPU in a job of their own."""
    for group, family in {"sm90": "sm90", "sm80": "sm80", "sm80-163kb": "sm80", "sm80-99kb": "sm80"}.items():
        found = [test for job in jobs if re.match(rf"{group}-Gpu", job.name) for test in job.tests]
        wanted = [x for x in names if job_list.family_of(x) == family and not x.startswith("GpuLargeTensors.")]
        assert sorted(found) == sorted(wanted), group
    assert "--gtest_filter=GpuLargeTensors.*" in next(x for x in jobs if x.name == "large-tensors").command


def check_seeds(jobs):
    seeds = []
    for job in jobs:
        if job.name.startswith("random-sm90-"):
            first, count = (int(job.environment[f"STROBE_{name}"]) for name in ("FIRST_SEED", "SEEDS"))
            seeds += range(first, first + count)
    assert len(seeds) == len(set(seeds)) == 3200
    shared = {job.environment["STROBE_SHARED_KB"] for job in jobs if job.name.startswith("random-sm80-")}
    assert shared == {"227", "163", "99"}


def check_every_check(jobs):
    """No test of tests/gpu/python and no bench for a GPU is forgotten."""
    words = " ".join(word for job in jobs for word in job.command)
    for path in [*(ROOT / "tests" / "gpu" / "python").glob("[ct]*_*.py"), *(ROOT / "bench" / "gpu").glob("*.py")]:
        if path.name in ("text_modifications.py", "context_parallel.py"):
            continue  # a part of texts.py, and of context_parallel.sh
        assert path.relative_to(ROOT).as_posix() in words, path.name


def check_times(names):
    """An earlier run's times are the estimates, of a test and of a job."""
    times = {"jobs": {"quickstart": 3.0}, "tests": {name: 0.1 for name in names}}
    jobs = job_list.load(JOBS, {PROGRAM: names}, times)
    assert next(x for x in jobs if x.name == "quickstart").seconds == 3.0
    assert len([x for x in jobs if x.name.startswith("sm90-GpuBackward")]) == len({"Backward", "Fields", "Parts"})


def check_logs():
    log = job_report.Log(
        "[ RUN      ] A.One\n[       OK ] A.One (12 ms)\n[ RUN      ] A.Two/sm90\nwrong\n"
        '[  FAILED  ] A.Two/sm90, where GetParam() = "x" (2000 ms)\n[ RUN      ] A.Three\n[  SKIPPED ] A.Three (0 ms)\n'
        "[ RUN      ] A.Four\n[  FAILED  ] A.Two/sm90, where GetParam() = x\n"
    )
    assert log.seconds == {"A.One": 0.012, "A.Two/sm90": 2.0, "A.Three": 0.0}
    assert log.failures == ["A.Two/sm90"] and log.skipped == 1 and log.unfinished == ["A.Four"]
    log = job_report.Log("FAILED tests/a.py::test_b - assert 1\n\x1b[31m1 failed\x1b[0m, 3 passed in 2.0s\n")
    assert log.failures == ["tests/a.py::test_b"] and "1 failed, 3 passed in 2.0s" in log.words()


def main():
    names = listed_tests()
    jobs = job_list.load(JOBS, {PROGRAM: names})
    check_files(jobs)
    check_tests(jobs, names)
    check_seeds(jobs)
    check_every_check(jobs)
    check_times(names)
    check_logs()


if __name__ == "__main__":
    main()
