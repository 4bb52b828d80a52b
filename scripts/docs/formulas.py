# SPDX-License-Identifier: Apache-2.0
"""GitHub's formulas, $`...`$ in a line and ```math blocks, as SVG that needs neither scripts nor fonts."""

import re
from html import escape

from quickjax import MathJaxRenderer

# Fenced blocks and code spans come first, so that nothing inside them is taken for a formula.
PIECE = re.compile(
    r"^```math\n(?P<block>.*?)^```$|^```.*?^```$|\$`(?P<inline>[^`]+)`\$|`[^`\n]*`", re.MULTILINE | re.DOTALL
)
RENDERER = MathJaxRenderer()


class Formulas:
    """Replaces formulas by marks before Markdown is rendered, and the marks by SVG afterwards."""

    def __init__(self):
        self.svgs = []

    def mark(self, markdown):
        """The text with a word in the place of each formula. ValueError if TeX rejects one."""
        return PIECE.sub(self._mark, markdown)

    def fill(self, html):
        """The page with each formula in its place."""
        return re.sub(r"formula(\d+)formula", lambda match: self.svgs[int(match.group(1))], html)

    def _mark(self, match):
        block, inline = match.group("block"), match.group("inline")
        if block is None and inline is None:
            return match.group()
        tex = (block or inline).strip().replace(r"\|", "|" if inline else r"\|")  # tables need it escaped
        svg = RENDERER.render(tex, display=block is not None)
        if "data-mjx-error" in svg:
            raise ValueError(f"TeX rejects {tex}")
        svg = svg.replace('role="img"', f'role="img" aria-label="{escape(tex)}"', 1)
        svg = re.sub(r' data-(?:latex|mml-node|mjx-texclass|c)="[^"]*"', "", svg)
        kind = "formula-block" if block is not None else "formula"
        self.svgs.append(f'<span class="{kind}">{svg}</span>')
        return f"formula{len(self.svgs) - 1}formula"
