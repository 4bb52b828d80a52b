# SPDX-License-Identifier: Apache-2.0
"""Says which mutations no longer match the code: their text must be in its file exactly once. Part of `make lint`."""

import sys

from mutations import MUTATIONS as CPU
from run_gpu import MUTATIONS as GPU
from tree import ROOT


def complaint(mutation):
    path = ROOT / mutation.file
    count = path.read_text(encoding="utf-8").count(mutation.text) if path.is_file() else 0
    return None if count == 1 else f"{mutation.file} has the text of this mutation {count} times: {mutation.name}"


def main():
    complaints = [line for line in map(complaint, [*CPU, *GPU]) if line]
    print("\n".join(complaints), end="\n" if complaints else "")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
