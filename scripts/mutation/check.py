# SPDX-License-Identifier: Apache-2.0
"""Says which mutations no longer match the code: their text must be in its file exactly once, and the test that is to
notice a GPU kernel's must exist. Part of `make lint`."""

import re
import sys

from mutations import MUTATIONS as CPU
from run_gpu import MUTATIONS as GPU
from run_gpu import test_filter
from tree import ROOT


def complaint(mutation):
    path = ROOT / mutation.file
    count = path.read_text(encoding="utf-8").count(mutation.text) if path.is_file() else 0
    return None if count == 1 else f"{mutation.file} has the text of this mutation {count} times: {mutation.name}"


def gpu_tests():
    files = (ROOT / "tests" / "gpu").glob("*.cpp")
    found = (
        re.findall(r"^TEST_[FP]\((\w+), (\w+)\)", path.read_text(encoding="utf-8"), re.MULTILINE) for path in files
    )
    return {f"{suite}.{name}" for tests in found for suite, name in tests}


def without_parameters(name):
    """Suite.Test of Instantiation/Suite.Test/parameter."""
    suite, test = name.split(".")
    return f"{suite.rpartition('/')[2]}.{test.partition('/')[0]}"


def main():
    complaints = [line for line in map(complaint, [*CPU, *GPU]) if line]
    tests = gpu_tests()
    complaints += [
        f"there is no test {m.test} for the mutation: {m.name}"
        for m in GPU
        if without_parameters(test_filter(m.test)) not in tests
    ]
    print("\n".join(complaints), end="\n" if complaints else "")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
