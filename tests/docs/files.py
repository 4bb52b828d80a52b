# SPDX-License-Identifier: Apache-2.0
"""Checks that the files that pages name exist, and that tables of a folder's files have all of them: files.py ROOT

A name is a code span such as `src/cpu/plan.cpp`, `sm90/tile/` or `pack-inl.h`: a file or folder of the repository, by
any end of its path. A table whose first heading is "file of `FOLDER`" has every source below the folder, by its name or
its folder's (`plan.cpp` stands for `plan.h`, too); one with "some files of `FOLDER`" has a choice.
"""

import re
import sys
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

ROOT = Path(sys.argv[1])
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
FOLDERS = "bench|cmake|docs|examples|include|packaging|python|scripts|src|tests|tools"
NAMED = re.compile(rf"(?:(?:{FOLDERS})/[\w./*-]+|[\w/*-]+\.(?:h|cpp|py|sh))")
TABLE = re.compile(r"^\| (some files|file) of `([^`]+)`.*\n\|[-| ]+\n((?:\|.*\n)+)", re.MULTILINE)
SOURCES = {".h", ".cpp"}
OTHERS = {"tests/test_flash_attn.py", "hopper/test_flash_attn.py", "cuda_fp16.h"}  # of flash-attention and CUDA


def repository_files():
    """Paths of all files and folders, without what was built."""
    below = (path for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*"))
    return {path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*"), *below)}


def exists(name, paths):
    name = name.rstrip("/")
    return any(fnmatch(path, name) or fnmatch(path, f"*/{name}") for path in paths)


def unknown(page, paths):
    text = CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))
    for name in SPAN.findall(text):
        if NAMED.fullmatch(name) and name not in OTHERS and not exists(name, paths):
            yield f"{page}: there is no {name}"


def covers(name, path):
    """Whether a name of a table stands for a path, both relative to the table's folder."""
    if name.endswith("/"):
        return path.startswith(name)
    stem = name.rsplit(".", 1)[0]
    return fnmatch(path, name) or fnmatch(path.rsplit(".", 1)[0], stem)


def listed(rows):
    """The names in a table's first column; one without a folder lies beside the name before it."""
    for row in rows.splitlines():
        folder = ""
        for name in SPAN.findall(row.split("|")[1]):
            folder = name.rpartition("/")[0] if "/" in name.rstrip("/") else folder
            yield name if "/" in name else f"{folder}/{name}".lstrip("/")


def incomplete(page, paths):
    for claim, folder, rows in TABLE.findall(page.read_text(encoding="utf-8")):
        names = list(listed(rows))
        here = [path.removeprefix(f"{folder}/") for path in paths if path.startswith(f"{folder}/")]
        sources = [path for path in here if PurePosixPath(path).suffix in SOURCES]
        yield from (f"{page}: {folder} has no {name}" for name in names if not any(covers(name, path) for path in here))
        if claim == "file":
            lost = sorted(path for path in sources if not any(covers(name, path) for name in names))
            yield from (f"{page}: the table of {folder} lacks {path}" for path in lost)


def main():
    paths = repository_files()
    pages = [page for pattern in ("*.md", "docs/*.md", "examples/*/*.md") for page in sorted(ROOT.glob(pattern))]
    bad = [line for page in pages for line in (*unknown(page, paths), *incomplete(page, paths))]
    print(*bad, sep="\n")
    sys.exit(bool(bad) or not pages)


main()
