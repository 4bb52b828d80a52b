#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the kernels of a pack with another NVRTC, without a GPU: what each version makes of them.

Usage: compile_pack.py LIBRARIES [--report build/release/kernels.json] [--match REGEX] [--every N] [--jobs N]
LIBRARIES is a folder with libnvrtc.so.12 or .13 and its builtins, as the PyPI packages nvidia-cuda-nvrtc-cu12 (12.4 to
12.9) and nvidia-cuda-nvrtc have it. Prints the kernels that spill, have their WGMMAs serialised (C75xx) or use other
registers than the pack's, and exits with 1 where one does not compile.
"""

import argparse
import json
import multiprocessing
import re
import sys
import time
from pathlib import Path

from compile_kernel import ROOT, compile_kernel

HEADERS = ROOT / "build/cuda/nvidia/cu13/include"


def compile_row(task):
    """(row of the report, registers, local bytes, serialised, seconds), or the log of a failure."""
    row, libraries = task
    start = time.time()
    cubin, _, log = compile_kernel(
        row["header"], row["kernel"], HEADERS.parent, (), row["architecture"], libraries=libraries
    )
    if cubin is None:
        return row, None, log
    registers = int(re.search(r"Used (\d+) registers", log)[1])
    local = sum(int(n) for n in re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", log))
    serialised = "C75" in log.replace("C7519", "")
    return row, (registers, local, serialised, time.time() - start), log


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", type=Path)
    parser.add_argument("--report", type=Path, default=ROOT / "build/release/kernels.json")
    parser.add_argument("--match", default=".")
    parser.add_argument("--every", type=int, default=1, help="compile one of so many")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    arguments = parser.parse_args()
    rows = [row for row in json.loads(arguments.report.read_text()) if re.search(arguments.match, row["name"])]
    tasks = [(row, arguments.libraries) for row in rows[:: arguments.every]]
    failures = serialised = spilling = 0
    seconds = 0.0
    with multiprocessing.Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for row, result, log in pool.imap(compile_row, tasks):
            if result is None:
                failures += 1
                print(f"{row['name']} does not compile:\n{log}")
                continue
            registers, local, is_serialised, elapsed = result
            seconds += elapsed
            serialised += is_serialised
            spilling += local > 0
            if local or is_serialised or registers != row["registers"]:
                notes = f"{local} bytes in local memory, " if local else ""
                notes += "WGMMAs serialised, " if is_serialised else ""
                print(f"{row['name']}: {notes}{registers} registers, {row['registers']} in the pack")
    print(f"{len(tasks)} kernels: {failures} fail, {serialised} serialised, {spilling} spill; {seconds:.0f} s in all")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
