# SPDX-License-Identifier: Apache-2.0
"""Checks that the relative links of Markdown files lead somewhere: links.py ROOT"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page):
    """The names that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def broken(page):
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"{page}: {target} does not exist"
        elif anchor and anchor not in anchors(path):
            yield f"{page}: {target} has no such heading"


root = Path(sys.argv[1])
folders = ("*.md", "docs/**/*.md", "examples/**/*.md")
bad = [line for pattern in folders for page in sorted(root.glob(pattern)) for line in broken(page)]
print(*bad, sep="\n")
sys.exit(bool(bad))
