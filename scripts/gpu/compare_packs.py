#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a change moved machine code: compares the compiled kernels of two builds.

    scripts/gpu/compare_packs.py BEFORE/kernels.archive AFTER/kernels.archive

Kernels are matched by the bytes of their code sections, so that one which only has another name counts as the same.
Prints how many are the same and, demangled, those that only one build has, with registers, spills and size. Ends with
1 where there are such.
"""

import argparse
import hashlib
import re
import struct
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

MAGIC = b"STROBE1\n"


def entries(data):
    """(name, content) of an archive; src/runtime/archive.h has the layout."""
    if not data.startswith(MAGIC):
        sys.exit("this is no archive of kernels")
    at = len(MAGIC) + 32
    (count,) = struct.unpack_from("<Q", data, at)
    at += 8
    for _ in range(count):
        name_bytes, content_bytes = struct.unpack_from("<QQ", data, at)
        at += 16
        name = data[at : at + name_bytes].decode()
        at += name_bytes + 1
        yield name, data[at : at + content_bytes]
        at += content_bytes + 1


def code_of(cubin):
    """The code sections of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    names = headers[names_at][4]
    for name, _, _, _, offset, length in headers:
        if cubin[names + name :].startswith(b".text."):
            yield cubin[offset : offset + length]


def kernels_of(path):
    """(digest, words, mangled name) of each kernel."""
    for _, content in entries(path.read_bytes()):
        if not content.startswith(MAGIC):
            continue
        image = dict(entries(content))
        code = b"".join(code_of(image["cubin"]))
        log = image["log"].decode(errors="replace")
        registers = re.search(r"Used (\d+) registers", log)
        spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", log))
        words = f"{registers.group(1) if registers else '?'} registers, {spilled} bytes spilled, {len(code)} bytes"
        yield hashlib.sha256(code).hexdigest()[:16], words, image["lowered_name"].decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    arguments = parser.parse_args()
    found = [defaultdict(list), defaultdict(list)]
    for path, kernels in zip((arguments.before, arguments.after), found, strict=True):
        for digest, words, name in kernels_of(path):
            kernels[digest].append((words, name))
    counts = [Counter({digest: len(kernels) for digest, kernels in side.items()}) for side in found]
    print(f"{(counts[0] & counts[1]).total()} kernels have the same code")
    for side, title, only in zip(
        found, ("before", "after"), (counts[0] - counts[1], counts[1] - counts[0]), strict=True
    ):
        lines = [f"{words}: {name}" for digest, number in only.items() for words, name in side[digest][:number]]
        if lines:
            print(f"{len(lines)} only {title}:")
            print(
                subprocess.run(
                    ["c++filt"], input="\n".join(sorted(lines)), text=True, check=True, capture_output=True
                ).stdout
            )
    return 1 if counts[0] != counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
