"""Breaks the CPU engine in many ways, one at a time, and expects the tests to notice each.

Run through `make mutation`. Works on a copy of the tree in build/mutation, so nothing here is touched. A mutation (see
mutations.py) replaces one text by another; the library is built again and the tests run until one of them fails. Ends
with 1 when the tests noticed nothing, when a text is no longer in its file or when a mutation does not compile: then
the tests need a case, or mutations.py needs the code as it is now.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "mutation" / "tree"
BUILD = ROOT / "build" / "mutation" / "build"

# This machine's instruction set alone: the kernels are one text for all of them, and compile several times faster.
CONFIGURE = [
    *("cmake", "-G", "Ninja", "-S", TREE, "-B", BUILD, "--log-level=WARNING"),
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -march=native -DHWY_COMPILE_ONLY_STATIC",
    *("-DSTROBE_GPU=OFF", "-DSTROBE_BUILD_EXAMPLES=OFF"),
]

# From quick and broad to slow and special. A mutant that makes them hang is noticed, too.
TESTS = [
    ("random configurations", "random_tests", [], {"STROBE_SEEDS": "200"}),
    ("attention tests", "attention_tests", ["--gtest_filter=-*EverySeqlen*:*LargeStrides*", "--gtest_fail_fast"], {}),
]
HANGS_AFTER = 300  # seconds


def run(command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)


def copy_tree():
    """Brings TREE up to date with the files of the project; unchanged ones keep their times, so builds stay short."""
    listed = run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]).stdout
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for name in names:
        source, target = ROOT / name, TREE / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for path in list(TREE.rglob("*")):
        if path.is_file() and str(path.relative_to(TREE)) not in names:
            path.unlink()


def build(*targets):
    """None, or the compiler's words."""
    result = run(["cmake", "--build", BUILD, "--target", *targets])
    return None if result.returncode == 0 else result.stdout + result.stderr


def first_failure():
    """The name of what the tests noticed, or None."""
    for title, program, arguments, environment in TESTS:
        try:
            result = run([BUILD / "bin" / program, *arguments], env=os.environ | environment, timeout=HANGS_AFTER)
        except subprocess.TimeoutExpired:
            return f"{title}: hang"
        if result.returncode < 0:
            return f"{title}: ended by signal {-result.returncode}"
        if result.returncode != 0:
            failed = [line for line in result.stdout.splitlines() if line.startswith("[  FAILED  ]")]
            return f"{title}: {failed[0].split()[3].rstrip(',')}" if failed else title
    return None


def try_mutation(mutation):
    """Whether the tests noticed, and what there is to say."""
    path = TREE / mutation.file
    if not path.exists():
        return False, f"{mutation.file} is not there"
    whole = path.read_text()
    count = whole.count(mutation.text)
    if count != 1:
        return False, f"its text is {count} times in {mutation.file}, not once: bring mutations.py up to date"
    path.write_text(whole.replace(mutation.text, mutation.broken))
    try:
        if errors := build("strobe"):
            return False, "does not compile:\n" + errors
        noticed = first_failure()
        return noticed is not None, noticed or "NOBODY NOTICED"
    finally:
        path.write_text(whole)


def prepare():
    """Builds the tree as it is and expects the tests to pass on it."""
    copy_tree()
    configured = run(CONFIGURE)
    if configured.returncode != 0:
        sys.exit(configured.stdout + configured.stderr)
    if errors := build("strobe", *(program for _, program, _, _ in TESTS)):
        sys.exit("the tree as it is does not build:\n" + errors)
    if failure := first_failure():
        sys.exit(f"the tests fail on the tree as it is: {failure}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WORDS", default="", help="mutations whose name contains these words")
    parser.add_argument("--list", action="store_true", help="print the mutations and stop")
    arguments = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if arguments.only in mutation.name]
    if arguments.list:
        print("\n".join(f"{mutation.name} ({mutation.file})" for mutation in chosen))
        return
    begin = time.monotonic()
    print(f"building the tree as it is, then breaking it in {len(chosen)} ways", flush=True)
    prepare()
    survivors = 0
    for mutation in chosen:
        start = time.monotonic()
        noticed, words = try_mutation(mutation)
        survivors += not noticed
        mark = "noticed " if noticed else "SURVIVED"
        print(f"  {mark} {mutation.name:<58} {time.monotonic() - start:5.0f} s  {words}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} noticed in {(time.monotonic() - begin) / 60:.0f} minutes")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
