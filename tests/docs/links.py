# SPDX-License-Identifier: Apache-2.0
"""Checks that the relative links of Markdown files and logs lead somewhere, and that the tests that pages name exist:
links.py ROOT"""

import re
import sys
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts/docs"))
import performance_logs

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def text_of(page):
    return performance_logs.page(page) if page.suffix == ".json" else page.read_text(encoding="utf-8")


def anchors(page):
    """The names that GitHub gives to a page's headings, and the ids of a log."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    named = set(performance_logs.ids(performance_logs.load(page))) if page.suffix == ".json" else set()
    return named | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def broken(page):
    for target in LINK.findall(CODE.sub("", text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"{page}: {target} does not exist"
        elif anchor and anchor not in anchors(path):
            yield f"{page}: {target} has no such heading"


TESTS = re.compile(r"^Tests: (.*)$", re.MULTILINE)
NAME = re.compile(r"`([^`]+)`")
DEFINED = re.compile(r"^TEST(?:_P|_F)?\((\w+), (\w+)\)", re.MULTILINE)


def unknown_tests(page, root):
    """Of lines such as "Tests: `Suite.*` in `tests/folder/file.cpp`, `tests/folder`."""
    for line in TESTS.findall(text_of(page)):
        for group in line.split(", "):
            *names, path = NAME.findall(group) or [group]
            if not (root / path).exists():
                yield f"{page}: there are no tests {path}"
            for name in names if (root / path).is_file() else ():
                defined = [".".join(test) for test in DEFINED.findall((root / path).read_text(encoding="utf-8"))]
                if not any(fnmatch(test, name) for test in defined):
                    yield f"{page}: {path} has no test {name}"


def untested_options(page):
    for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        if not TESTS.search(section):
            yield f"{page}: {section.splitlines()[0]} names no tests"


root = Path(sys.argv[1])
folders = ("*.md", "docs/**/*.md", "examples/**/*.md")
pages = [page for pattern in folders for page in sorted(root.glob(pattern))] + performance_logs.log_files(root)
bad = [line for page in pages for check in (broken(page), unknown_tests(page, root)) for line in check]
bad += untested_options(root / "docs/options.md")
print(*bad, sep="\n")
sys.exit(bool(bad))
