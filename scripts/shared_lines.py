#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the host code of one family of GPU kernels stands also in another's; `make lint` runs it.

A line of code counts where it is one of RUN lines that follow one another in the other family, too: single lines that
are the same, `return plan;`, are the language's. Comments, includes, braces and lines without a word are no code, and
the family's own name is no difference. What is shared belongs to src/gpu.
"""

import re
import sys
from itertools import permutations
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ("sm90", "sm80")
RUN = 3
MOST_PERCENT = 10


def code_lines(path, family):
    """The lines of code of a file, without the spaces around them and the family's name."""
    text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
    lines = (line.strip().replace(family, "FAMILY") for line in text.splitlines())
    return [line for line in lines if re.search(r"\w", line) and not line.startswith(("#", "namespace", "using"))]


def files_of(root, family):
    """The code of each file of a family."""
    return [code_lines(path, family) for path in sorted((root / "src" / family).glob("*.[ch]*"))]


def runs(lines):
    """Every RUN lines that follow one another, by the first one's number."""
    return {first: tuple(lines[first : first + RUN]) for first in range(len(lines) - RUN + 1)}


def shared(files, others):
    """How many lines of `files` stand in `others` in a run, and how many lines there are."""
    known = {run for lines in others for run in runs(lines).values()}
    count = 0
    for lines in files:
        first_lines = [first for first, run in runs(lines).items() if run in known]
        count += len({first + i for first in first_lines for i in range(RUN)})
    return count, sum(map(len, files))


def complaints(root):
    """Of each family that has more than MOST_PERCENT of its lines from another."""
    code = {family: files_of(root, family) for family in FAMILIES}
    for family, other in permutations(FAMILIES, 2):
        count, total = shared(code[family], code[other])
        if count * 100 > total * MOST_PERCENT:
            yield (
                f"src/{family}: {count} of {total} lines of code stand in src/{other}, too, which is more than "
                f"{MOST_PERCENT}%: what families share belongs to src/gpu\n"
            )


def main():
    found = list(complaints(ROOT))
    sys.stdout.writelines(found)
    if "--verbose" in sys.argv:
        code = {family: files_of(ROOT, family) for family in FAMILIES}
        for family, other in permutations(FAMILIES, 2):
            count, total = shared(code[family], code[other])
            print(f"src/{family}: {count} of {total} lines ({100 * count / total:.1f}%) stand in src/{other}, too")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
