# SPDX-License-Identifier: Apache-2.0
"""Breaks the GPU kernels in many ways, one at a time, and expects the tests to detect each.

Needs a machine with such a GPU and NVRTC; `--build-only` does what needs neither, and `--programs FOLDER` takes what it
built: FOLDER/gpu_tests, FOLDER/gpu_random_tests and FOLDER/../lib. Every mutation of gpu_*mutations.py is compiled into
a copy of the tree beside what it replaces. The library there has no kernels, only their sources, and compiles those of
the mutation that STROBE_MUTANT=number names. Each runs the one test that must notice it. Ends with 1 when a test fails
without mutations, or notices none, or a text is no longer in its file, or a mutation does not compile.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_backward_mutations import GRADIENTS
from gpu_mutations import KERNELS, PLAIN
from gpu_option_mutations import OPTIONS
from gpu_text_mutations import TEXTS
from gpu_wide_mutations import WIDE
from tree import ROOT, Mutation, make_tree, run, with_mutations

MUTATIONS = [*PLAIN, *GRADIENTS, *OPTIONS, *TEXTS, *WIDE]

FOLDER = ROOT / "build" / "mutation-gpu"
TREE, BUILD = FOLDER / "tree", FOLDER / "build"
PROGRAMS = ("gpu_tests", "gpu_random_tests")
RANDOM_SUITES = ("GpuRandom", "GpuStored", "GpuEightBit")  # of gpu_random_tests
LIMIT = 240  # seconds; what hangs traps long before

CONFIGURE = [
    *("cmake", "-G", "Ninja", "-S", TREE, "-B", BUILD, "--log-level=WARNING", "-DCMAKE_BUILD_TYPE=Release"),
    f"-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES={ROOT / 'cmake' / 'ccache.cmake'}",
    *(f"-DSTROBE_CUDA_FOLDER={ROOT / 'build' / 'cuda'}", "-DSTROBE_GPU=ON", "-DSTROBE_BUILD_EXAMPLES=OFF"),
    "-DSTROBE_PACK=^$",  # a mutation changes every kernel's key
]

# Always on: the library's compiler is told the mutation.
HOOKS = [
    Mutation(
        "the mutation's number",
        "src/runtime/kernel_store.cpp",
        '"--ptxas-options=-v"};',
        '"--ptxas-options=-v", std::string("-DSTROBE_MUTANT=") + '
        '(std::getenv("STROBE_MUTANT") != nullptr ? std::getenv("STROBE_MUTANT") : "0")};',
    ),
]


def alternatives(number, mutation):
    return f"\n#if STROBE_MUTANT == {number}\n{mutation.broken}\n#else\n{mutation.text}\n#endif\n"


def change(name, text):
    text, complaints = with_mutations(name, text, HOOKS, lambda _, hook: hook.broken)
    text, more = with_mutations(name, text, MUTATIONS, alternatives)
    if name.startswith(KERNELS):  # the host's compiler includes some of them
        text = "#ifndef STROBE_MUTANT\n#define STROBE_MUTANT 0\n#endif\n" + text
    return text, complaints + more


def build():
    """The folder with the programs."""
    complaints = make_tree(TREE, {mutation.file for mutation in [*HOOKS, *MUTATIONS]}, change)
    if complaints:
        sys.exit("\n".join(complaints))
    for command in (CONFIGURE, ["cmake", "--build", BUILD, "--target", *PROGRAMS]):
        result = run(command)
        if result.returncode != 0:
            sys.exit(result.stdout + result.stderr + "the tree does not build with the mutations")
    return BUILD / "bin"


def test_filter(test):
    return test if "." in test else f"GpuOptions.{test}/sm90"


def program_of(test):
    return PROGRAMS[test.partition(".")[0] in RANDOM_SUITES]


def run_test(programs, number, test):
    """Runs a test on mutation `number`, 0 for none. What it noticed, or None, and its output."""
    with tempfile.TemporaryDirectory() as cache:
        libraries = f"{programs.parent / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        variables = {"STROBE_MUTANT": str(number), "STROBE_CACHE_DIR": cache, "LD_LIBRARY_PATH": libraries}
        command = [programs / program_of(test), "--gtest_brief=1", f"--gtest_filter={test_filter(test)}"]
        try:
            result = run(command, env=os.environ | variables, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return "hangs", ""
    if result.returncode < 0:
        return f"signal {-result.returncode}", result.stdout
    if result.returncode == 0:
        return None, result.stdout
    failures = [
        line for line in result.stdout.splitlines() if (" is " in line and "expected" in line) or "CUDA_" in line
    ]
    return (failures or ["failed"])[0][:70], result.stdout


def try_mutation(programs, number, test):
    """A mark, whether it is as it must be, and words."""
    start = time.monotonic()
    noticed, output = run_test(programs, number, test)
    seconds = f"{time.monotonic() - start:4.0f} s"
    if "[  SKIPPED ]" in output or "0 tests from" in output:
        return "NOT RUN", False, seconds, output.strip()[-200:]
    if "for the GPU: NVRTC" in output:
        return "DOES NOT COMPILE", False, seconds, noticed
    if number == 0:
        return ("FAILED", False, seconds, output[-2000:]) if noticed else ("passed", True, seconds, "as written")
    return ("noticed", True, seconds, noticed) if noticed else ("SURVIVED", False, seconds, "the test passed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WORDS", default="", help="mutations whose name contains these words")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests to run in parallel")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th mutation, from the I-th on")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--programs", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    programs = arguments.programs or build()
    if arguments.build_only:
        return 0
    chosen = [number for number, mutation in enumerate(MUTATIONS, start=1) if arguments.only in mutation.name]
    part, parts = map(int, arguments.part.split("/"))
    chosen = chosen[part::parts]
    tasks = [(0, test) for test in sorted({MUTATIONS[number - 1].test for number in chosen})]
    tasks += [(number, MUTATIONS[number - 1].test) for number in chosen]
    bad = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda task: try_mutation(programs.resolve(), *task), tasks)
        for (number, test), (mark, well, seconds, words) in zip(tasks, results, strict=True):
            name = MUTATIONS[number - 1].name if number else test
            bad += not well
            print(f"  {mark:8}  {name:62} {seconds}  {words}", flush=True)
    print(f"{len(chosen)} mutations of the GPU kernels, {bad} not as they must be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
