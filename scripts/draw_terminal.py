# SPDX-License-Identifier: Apache-2.0
"""Draws what a terminal showed: draw_terminal.py PROMPT CAPTURE OUT.svg, CAPTURE as script(1) records it.

Knows what our programs write: plain, bold and dim text, carriage returns, and ESC [ K, which clears to the line's end.
"""

import re
import sys
from html import escape
from pathlib import Path

CHARACTER, LINE, MARGIN, FONT_SIZE = 8.5, 20, 20, 14  # CHARACTER: the advance of the widest of the fonts below
BACKGROUND, COLORS = "#161B22", {"0": "#C9D1D9", "1": "#FFFFFF", "2": "#8B949E"}  # by SGR: plain, bold, dim
# GitHub shows pictures without network: whatever monospaced font the viewer has.
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def final_lines(capture):
    """The lines that stay on the screen when all has been written."""
    body = re.sub(r"^Script started on .*\n|\n*Script done on .*\n?", "", capture)
    for line in body.replace("\r\n", "\n").rstrip().split("\n"):
        shown = ""
        for part in line.split("\r"):
            text = part.removesuffix("\x1b[K")
            shown = text if text != part else text + shown[len(text) :]
        yield shown


def spans(line):
    """(style, text) of each run of one style."""
    first, *rest = re.split(r"\x1b\[(\d)m", line)
    runs = [("0", first), *zip(rest[::2], rest[1::2], strict=True)]
    return [(style, text) for style, text in runs if text]


def svg(lines):
    columns = max(sum(len(text) for _, text in spans(line)) for line in lines)
    width, height = round(2 * MARGIN + columns * CHARACTER), 2 * MARGIN + LINE * len(lines)
    styles = "".join(f".s{style} {{ fill: {color} }} " for style, color in COLORS.items())
    styles += f"text {{ font: {FONT_SIZE}px {FONT}; white-space: pre }} .s1 {{ font-weight: bold }}"
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{styles}</style>",
        f'<rect width="{width}" height="{height}" rx="10" fill="{BACKGROUND}"/>',
    ]
    for number, line in enumerate(lines):
        text = "".join(f'<tspan class="s{style}">{escape(part)}</tspan>' for style, part in spans(line))
        y = MARGIN + LINE * number + FONT_SIZE
        if text:
            rows.append(f'<text x="{MARGIN}" y="{y}" xml:space="preserve">{text}</text>')
    return "\n".join([*rows, "</svg>\n"])


prompt, capture, out = sys.argv[1:]
shown = [f"\x1b[1m{prompt}\x1b[0m", *final_lines(Path(capture).read_bytes().decode())]
Path(out).write_text(svg(shown), encoding="utf-8")
