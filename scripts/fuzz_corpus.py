#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The inputs of a fuzz target as a text file: on each line the bytes of one, in hexadecimal digits, and its name if it
has one.

    scripts/fuzz_corpus.py unpack CORPUS FOLDER   # a file for each input, as libFuzzer takes them
    scripts/fuzz_corpus.py add CORPUS PATH...     # files, or folders of them; what the corpus has stays as it is
"""

import argparse
import hashlib
from pathlib import Path


def read(corpus):
    """Names by inputs."""
    lines = corpus.read_text(encoding="ascii").splitlines() if corpus.exists() else []
    return {bytes.fromhex(digits): name for digits, _, name in (line.partition(" ") for line in lines)}


def unpack(corpus, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for data, name in read(corpus).items():
        (folder / (name or hashlib.sha1(data, usedforsecurity=False).hexdigest())).write_bytes(data)


def add(corpus, paths):
    inputs = read(corpus)
    for file in (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])):
        data = file.read_bytes() if file.is_file() else b""
        if data:
            inputs.setdefault(data, "")
    lines = sorted(f"{data.hex()} {name}".rstrip() for data, name in inputs.items())
    corpus.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    print(f"{corpus.stem}: {len(inputs)} inputs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["unpack", "add"])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("paths", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.action == "add":
        add(arguments.corpus, arguments.paths)
    else:
        unpack(arguments.corpus, *arguments.paths)


if __name__ == "__main__":
    main()
