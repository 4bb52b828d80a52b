# SPDX-License-Identifier: Apache-2.0
"""Breaks the CPU engine in many ways, one at a time, and expects the tests to detect each.

Run through `make mutation`. Works on a copy of the tree in build/mutation, so nothing here is touched. Every mutation
of mutations.py is compiled in beside what it replaces, and STROBE_MUTANT=number turns one on: the library is built
once. Ends with 1 when the tests did not notice a mutation, or when a text is no longer in its file: then the tests need
a case, or mutations.py the code as it is now.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutations import MUTATIONS
from tree import ROOT, make_tree, run, with_mutations

TREE = ROOT / "build" / "mutation" / "tree"
BUILD = ROOT / "build" / "mutation" / "build"

# This machine's instruction set alone: the kernels are one text for all of them, and compile several times faster.
FLAGS = f"-O1 -march=native -DHWY_COMPILE_ONLY_STATIC -include {Path(__file__).parent / 'mutant.h'}"
CONFIGURE = [
    *("cmake", "-G", "Ninja", "-S", TREE, "-B", BUILD, "--log-level=WARNING"),
    *("-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_CXX_FLAGS_RELEASE={FLAGS}"),
    f"-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES={ROOT / 'cmake' / 'ccache.cmake'}",
    *("-DSTROBE_GPU=OFF", "-DSTROBE_BUILD_EXAMPLES=OFF"),
]

# From quick and broad to slow and special. What makes them hang is noticed, too.
VECTOR_TESTS = [
    ("random_tests", ["--gtest_brief=1"], {"STROBE_SEEDS": "150"}),
    ("attention_tests", ["--gtest_brief=1", "--gtest_fail_fast", "--gtest_filter=-*EverySeqlen*:*LargeStrides*"], {}),
]
# Of the matrix tiles, which most machines run by emulation alone.
AMX_TESTS = [("amx_emulated_tests", ["--gtest_brief=1", "--gtest_fail_fast"], {"STROBE_SEEDS": "150"})]
# Of AVX512-BF16, which some machines run.
DOT_TESTS = [("dot_product_tests", ["--gtest_brief=1", "--gtest_fail_fast"], {"STROBE_SEEDS": "150"})]
# Of accesses beyond tensors.
GUARDED_TESTS = [("guarded_tests", ["--gtest_brief=1"], {"STROBE_SEEDS": "400"})]


def of_dot_products(mutation):
    return mutation.name.startswith("dot products")


def has_dot_products():
    try:
        return "avx512_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False


def tests_of(mutation):
    if of_dot_products(mutation):
        return DOT_TESTS
    if mutation.name.startswith("memory: "):
        return GUARDED_TESTS
    return AMX_TESTS if mutation.file.startswith("src/cpu/bfloat16/") else VECTOR_TESTS


def limit(seconds):
    """When a mutant is taken to hang, where the code as it was written takes `seconds`."""
    return 20 + 10 * seconds


def alternatives(number, mutation):
    """Of a statement, with its semicolon, or an expression, which both find a place in parentheses."""
    on = f"::strobe_mutation::kMutant == {number}"
    if mutation.text.endswith(";"):
        return f"{{ if ({on}) {{ {mutation.broken} }} else {{ {mutation.text} }} }}"
    return f"({on} ? ({mutation.broken}) : ({mutation.text}))"


def build(tests):
    for command in (CONFIGURE, ["cmake", "--build", BUILD, "--target", *(program for program, _, _ in tests)]):
        result = run(command)
        if result.returncode != 0:
            sys.exit(result.stdout + result.stderr + "the tree does not build with the mutations")


def first_failure(mutant, limits):
    """What the tests noticed, or None. Each program is ended at its limit in seconds."""
    for program, arguments, variables in tests_of(MUTATIONS[mutant - 1]):
        environment = os.environ | variables | {"STROBE_MUTANT": str(mutant)}
        try:
            result = run([BUILD / "bin" / program, *arguments], env=environment, timeout=limits[program])
        except subprocess.TimeoutExpired:
            return f"{program} hangs"
        if result.returncode < 0:
            return f"{program} ends by signal {-result.returncode}"
        if result.returncode != 0:
            failed = [line.split()[3] for line in result.stdout.splitlines() if line.startswith("[  FAILED  ]")]
            return failed[0].rstrip(",") if failed else program
    return None


def measure(tests):
    """Runs the tests on the code as it was written; when each is to be ended."""
    limits = {}
    for program, arguments, variables in tests:
        start = time.monotonic()
        if run([BUILD / "bin" / program, *arguments], env=os.environ | variables).returncode != 0:
            sys.exit(f"{program} fails without mutations")
        limits[program] = limit(time.monotonic() - start)
    return limits


def try_mutant(mutant, limits):
    start = time.monotonic()
    return first_failure(mutant, limits), time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WORDS", default="", help="mutations whose name contains these words")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants to run in parallel")
    arguments = parser.parse_args()
    chosen = [number for number, mutation in enumerate(MUTATIONS, start=1) if arguments.only in mutation.name]
    if not has_dot_products():
        print("without AVX512-BF16: mutations of dot products are left out", flush=True)
        chosen = [number for number in chosen if not of_dot_products(MUTATIONS[number - 1])]

    print(f"building the library with {len(MUTATIONS)} mutations", flush=True)
    files = {mutation.file for mutation in MUTATIONS}
    complaints = make_tree(TREE, files, lambda name, text: with_mutations(name, text, MUTATIONS, alternatives))
    every = VECTOR_TESTS + AMX_TESTS + DOT_TESTS + GUARDED_TESTS
    tests = [test for test in every if any(test in tests_of(MUTATIONS[n - 1]) for n in chosen)]
    build(tests)
    limits = measure(tests)

    survivors = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for number, (noticed, seconds) in zip(chosen, pool.map(lambda n: try_mutant(n, limits), chosen), strict=True):
            if any(complaint.startswith(MUTATIONS[number - 1].name + ":") for complaint in complaints):
                continue
            survivors += noticed is None
            mark, words = ("noticed ", noticed) if noticed else ("SURVIVED", "no test failed")
            print(f"  {mark}  {MUTATIONS[number - 1].name:<55} {seconds:4.0f} s  {words}", flush=True)
    print("\n".join(complaints), end="\n" if complaints else "")
    print(f"{len(chosen)} mutations, {survivors} survived, {len(complaints)} no longer match the code")
    sys.exit(1 if survivors or complaints else 0)


if __name__ == "__main__":
    main()
