# SPDX-License-Identifier: Apache-2.0
"""Fenced code blocks of a Markdown file."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Block:
    line: int  # of the opening fence, from 1
    language: str
    text: str


def blocks(path: Path) -> list[Block]:
    found, start, lines = [], None, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.startswith("```"):
            lines.append(line)
        elif start is None:
            start, language, lines = number, line.removeprefix("```").strip(), []
        else:
            found.append(Block(start, language, "\n".join(lines)))
            start = None
    return found


def blocks_and_next(path: Path) -> list[tuple[Block, Block]]:
    """Each block with the one after it, which for the last is empty."""
    return list(pairwise([*blocks(path), Block(0, "", "")]))
