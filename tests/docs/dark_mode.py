# SPDX-License-Identifier: Apache-2.0
"""Checks that the text and the lines of drawings are legible on light and on dark backgrounds: dark_mode.py ROOT

Contrast is WCAG 2.2's ratio of relative luminances: 4.5 for text, 2 for the coloured lines and areas of a drawing,
which differ by marker, dash or label, too.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts/docs"))
from dark_mode import DARK

COLOR = "(#[0-9a-fA-F]{6})"
TEXT = re.compile("<text [^>]*>")
FILL = re.compile(rf'fill(?:="|: ){COLOR}')
PAINT = re.compile(rf'(?:fill|stroke)(?:="|: ){COLOR}')
GRID = {"#ffffff", "#e6e6e6", "#b0b0b0", "#cccccc", "#999999", "#eaeef2"}  # backgrounds, grids, frames, hidden cells
ON_COLOR = "#1b1f24"  # text on a coloured cell
YELLOW = "#f0e442"  # of large cells
TERMINAL = "demo.svg"  # dark always


def luminance(color):
    channels = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def complaints(path):
    svg = path.read_text(encoding="utf-8")
    head, _, drawing = svg.partition("</style>\n<")
    if "prefers-color-scheme: dark" not in head:
        yield f"{path}: has no dark colours"
    fills = (FILL.search(tag) for tag in TEXT.findall(drawing))
    texts = {fill[1].lower() if fill else "#000000" for fill in fills} - {ON_COLOR}
    paints = {match[1].lower() for match in PAINT.finditer(drawing)} - GRID - {ON_COLOR, YELLOW}
    for colors, least in ((texts, 4.5), (paints, 2)):
        for color in sorted(colors):
            for shown, background in ((color, "#ffffff"), (DARK.get(color, color), DARK["#ffffff"])):
                if contrast(shown, background) < least:
                    yield f"{path}: {shown} has a contrast of {contrast(shown, background):.1f} on {background}"


assert round(contrast("#000000", "#ffffff"), 2) == 21 and round(contrast("#777777", "#ffffff"), 2) == 4.48
drawings = [path for path in sorted((Path(sys.argv[1]) / "docs").rglob("*.svg")) if path.name != TERMINAL]
bad = [line for path in drawings for line in complaints(path)]
print(*bad, sep="\n")
sys.exit(bool(bad) or not drawings)
