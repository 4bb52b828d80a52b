# SPDX-License-Identifier: Apache-2.0
"""Runs the commands and Python blocks of pages: run_blocks.py PAGE.md...

- `sh` blocks: lines that begin with "strobe " must succeed; q.npy, k.npy, v.npy and do.npy are there.
- `console` blocks: after each "$ strobe ..." come exactly the lines that it prints.
- `python` blocks: the `text` block after one is exactly what it prints.

The working directory is left as it is; the program is found on PATH.
"""

import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown import blocks_and_next


def write_npy(path, shape):
    """Seeded normal float32 numbers in numpy's format, version 1.0."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust((10 + len(header)) // 64 * 64 + 64 - 11) + "\n"
    generator = random.Random(path.name)
    count = 1
    for extent in shape:
        count *= extent
    values = struct.pack(f"<{count}f", *(generator.gauss() for _ in range(count)))
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values)


def run(command, folder):
    result = subprocess.run(
        command, shell=isinstance(command, str), cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return result.returncode, result.stdout


def commands(text):
    """(command, expected output) of a console block."""
    for part in ("\n" + text).split("\n$ ")[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def failures(page, folder):
    for block, after in blocks_and_next(page):
        place = f"{page}:{block.line}"
        if block.language == "sh":
            for command in filter(lambda line: line.startswith("strobe "), block.text.splitlines()):
                code, output = run(command, folder)
                if code != 0:
                    yield f"{place}: `{command}` exits with {code}\n{output}"
        if block.language == "console":
            for command, expected in commands(block.text):
                _, output = run(command, folder)
                if output.strip() != expected.strip():
                    yield f"{place}: `{command}` prints\n{output}"
        if block.language == "python" and after.language == "text":
            _, output = run([sys.executable, "-c", block.text], folder)
            if output.rstrip() != after.text.rstrip():
                yield f"{place}: prints\n{output}"


def main():
    bad = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for tensor in ("q", "k", "v", "do"):
            write_npy(folder / f"{tensor}.npy", (1, 64, 2, 32))
        for page in sys.argv[1:]:
            bad += failures(Path(page).resolve(), folder)
    print(*bad, sep="\n", end="")
    sys.exit(bool(bad))


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    main()
