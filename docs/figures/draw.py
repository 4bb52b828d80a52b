# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the pages in this folder; with --check tests whether the committed files are up to date.

python docs/figures/draw.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/docs"))
from dark_mode import with_dark_mode

FOLDER = Path(__file__).parent
INK, FAINT = "#24292F", "#57606A"
ON_COLOR = "#1B1F24"  # text on cells, whose colours are the same on dark pages
COLORS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7")  # of Okabe and Ito's palette
HIDDEN, MASKED = "#EAEEF2", "#F0E442"


class Canvas:
    """Collects SVG elements on a card, which is white or, for readers who prefer that, dark."""

    def __init__(self, width, height):
        self.size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        self.elements = [f'<rect {self.size.rsplit(" viewBox", 1)[0]} rx="8" fill="#FFFFFF"/>']

    def cell(self, x, y, width, height, fill):
        self.elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" fill="{fill}" stroke="#FFFFFF"/>'
        )

    def text(self, x, y, text, size=12, color=INK, anchor="start", weight="normal"):
        self.elements.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{text}</text>'
        )

    def arrow(self, x0, y0, x1, y1, dashed=False):
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        self.elements.append(
            f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{FAINT}" stroke-width="1.4"{dashes}/>'
        )
        back = -7 if x1 > x0 else 7
        ends = ((x1 + back, y1 - 4), (x1 + back, y1 + 4)) if y0 == y1 else ((x1 - 4, y1 - 7), (x1 + 4, y1 - 7))
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in ((x1, y1), *ends))
        self.elements.append(f'<polygon points="{points}" fill="{FAINT}"/>')

    def box(self, x, y, width, height, color, title="", lines=()):
        self.elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{color}" fill-opacity="0.22" '
            f'stroke="{color}"/>'
        )
        self.text(x + 10, y + 20, title, 12, INK, weight="bold")
        for number, line in enumerate(lines):
            self.text(x + 10, y + 37 + 15 * number, line, 11, FAINT)

    def svg(self):
        body = "\n".join(self.elements)
        font = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'
        return with_dark_mode(f'<svg xmlns="http://www.w3.org/2000/svg" {self.size} {font}>\n{body}\n</svg>\n')


def visible(query, key, seqlen_q, seqlen_k, causal=None, left=-1, right=-1):
    """The masks of include/strobe/attention.h, for one query and one key."""
    center = query if causal == "top_left" else query + seqlen_k - seqlen_q
    if causal is not None:
        right = 0
    return (left < 0 or key >= center - left) and (right < 0 or key <= center + right)


def masks():
    seqlen_q, seqlen_k, cell, gap, top, left = 5, 8, 18, 34, 84, 44
    panels = (
        ("full", "", {}),
        ("causal", "bottom_right", {"causal": "bottom_right"}),
        ("causal", "top_left", {"causal": "top_left"}),
        ("window", "left 2, right 1", {"left": 2, "right": 1}),
        ("both", "bottom_right; left 3", {"causal": "bottom_right", "left": 3}),
    )
    step = seqlen_k * cell + gap
    canvas = Canvas(left + len(panels) * step, top + seqlen_q * cell + 22)
    for index, (title, subtitle, mask) in enumerate(panels):
        x0 = left + index * step
        canvas.text(x0, 26, title, 13, INK, weight="bold")
        canvas.text(x0, 44, subtitle, 12, FAINT)
        canvas.text(x0, top - 9, "keys 0 … 7", 11, FAINT)
        for query in range(seqlen_q):
            for key in range(seqlen_k):
                fill = COLORS[0] if visible(query, key, seqlen_q, seqlen_k, **mask) else HIDDEN
                canvas.cell(x0 + key * cell, top + query * cell, cell, cell, fill)
            if index == 0:
                canvas.text(x0 - 10, top + query * cell + 13, query, 11, FAINT, "end")
    middle = top + seqlen_q * cell / 2
    canvas.elements.append(
        f'<text x="16" y="{middle}" font-size="11" fill="{FAINT}" text-anchor="middle" '
        f'transform="rotate(-90 16 {middle})">queries</text>'
    )
    return canvas.svg()


ORDERS = (  # title, subtitle, lines below, (row, column) -> worker and its step
    (
        "FlashAttention, forward",
        "K, V outer, Q inner",
        ("one worker per head; O, m and l are read", "and written again for every tile"),
        lambda row, column: (0, 4 * column + row),
    ),
    (
        "FlashAttention-2, forward",
        "Q outer, K, V inner",
        ("a worker per row of tiles; O, m and l stay", "in fast memory until the row is done"),
        lambda row, column: (row, column),
    ),
    (
        "FlashAttention-2, backward",
        "K, V outer, Q inner",
        ("a worker per column of tiles; dK and dV stay,", "dQ is added to by every column"),
        lambda row, column: (column, row),
    ),
)


def orders():
    tiles, cell, gap, top, left = 4, 44, 88, 84, 46
    step = tiles * cell + gap
    canvas = Canvas(left + len(ORDERS) * step - 10, top + tiles * cell + 62)
    for index, (title, subtitle, notes, place) in enumerate(ORDERS):
        x0 = left + index * step
        canvas.text(x0, 26, title, 13, INK, weight="bold")
        canvas.text(x0, 44, subtitle, 12, FAINT)
        canvas.text(x0, top - 10, "blocks of keys →", 11, FAINT)
        for row in range(tiles):
            for column in range(tiles):
                worker, turn = place(row, column)
                x, y = x0 + column * cell, top + row * cell
                canvas.cell(x, y, cell, cell, COLORS[worker])
                canvas.text(x + cell / 2, y + cell / 2 + 5, turn + 1, 13, ON_COLOR, "middle")
        middle = top + tiles * cell / 2
        canvas.elements.append(
            f'<text x="{x0 - 12}" y="{middle}" font-size="11" fill="{FAINT}" text-anchor="middle" '
            f'transform="rotate(-90 {x0 - 12} {middle})">← blocks of queries</text>'
        )
        for number, note in enumerate(notes):
            canvas.text(x0, top + tiles * cell + 24 + 16 * number, note, 11, FAINT)
    return canvas.svg()


def causal_tiles():
    """Tiles of 240 queries x 128 keys over a causal sequence of 1,920: full, masked or skipped."""
    seqlen, block_m, block_n, scale, top, left = 1920, 240, 128, 0.16, 34, 40
    canvas = Canvas(660, 366)
    counts = {"skipped": 0, "masked": 0, "full": 0}
    fills = {"skipped": HIDDEN, "masked": MASKED, "full": COLORS[0]}
    for row in range(0, seqlen, block_m):
        for column in range(0, seqlen, block_n):
            kind = "full" if column + block_n - 1 <= row else "masked"
            if column > row + block_m - 1:
                kind = "skipped"
            counts[kind] += 1
            x, y = left + column * scale, top + row * scale
            canvas.cell(x, y, round(block_n * scale, 2), round(block_m * scale, 2), fills[kind])
    canvas.text(left, top - 12, "keys 0 … 1,919 in blocks of 128", 11, FAINT)
    middle = top + seqlen * scale / 2
    canvas.elements.append(
        f'<text x="24" y="{middle}" font-size="11" fill="{FAINT}" text-anchor="middle" '
        f'transform="rotate(-90 24 {middle})">queries 0 … 1,919 in blocks of 240</text>'
    )
    notes = {
        "full": "every pair is visible: no mask is applied",
        "masked": "the diagonal crosses it: scores are masked",
        "skipped": "no pair is visible: never computed",
    }
    for number, (kind, note) in enumerate(notes.items()):
        y = top + 60 + 64 * number
        canvas.cell(370, y - 14, 18, 18, fills[kind])
        canvas.text(398, y, f"{counts[kind]} of {sum(counts.values())} tiles {kind}", 13, INK, weight="bold")
        canvas.text(398, y + 19, note, 12, FAINT)
    return canvas.svg()


CALL = (  # boxes from left to right: title, lines, what is handed on
    ("forward(...)", ("arguments,", "options, execution"), ""),
    ("src/api", ("checks every shape,", "stride, dtype, length", "and overlap"), "AttentionProblem"),
    ("src/cpu/plan", ("tiles, tasks,", "workspace"), "CpuPlan"),
    ("src/cpu", ("tasks over sequences,", "heads and blocks"), "ForwardTask"),
    ("src/cpu/kernels", ("one block of queries", "against its keys"), ""),
)
BACKWARD = (
    ("each block of queries", ("D = rowsum(dO O) - dLSE", "dQ sums = 0"), ""),
    ("each block of keys", ("dK, dV whole;", "dQ sums += dS K, in turn"), ""),
    ("each block of queries", ("dQ = scale * sums,", "in the caller's dtype"), ""),
)


def flow(boxes, below=None):
    """Boxes joined by arrows; `below` is (box, text): the other way out of that box."""
    top, height, margin = 14, 92, 14
    widths = [max(7.4 * len(title), *(6.3 * len(line) for line in lines)) + 24 for title, lines, _ in boxes]
    gaps = [max(34, 6.6 * len(handed) + 22) for _, _, handed in boxes[:-1]]
    total = round(sum(widths) + sum(gaps) + 2 * margin)
    canvas = Canvas(total, top + height + (66 if below else 14))
    x = margin
    for index, ((title, lines, handed), width) in enumerate(zip(boxes, widths, strict=True)):
        canvas.elements.append(
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="6" fill="{COLORS[0]}" '
            f'fill-opacity="0.22" stroke="{COLORS[0]}"/>'
        )
        canvas.text(f"{x + 12:.1f}", top + 24, title, 13, INK, weight="bold")
        for number, line in enumerate(lines):
            canvas.text(f"{x + 12:.1f}", top + 44 + 16 * number, line, 12, FAINT)
        if below and below[0] == index:
            canvas.arrow(x + width / 2, top + height, x + width / 2, top + height + 34, dashed=True)
            canvas.text(f"{x + width / 2:.1f}", top + height + 52, below[1], 12, FAINT, "middle")
        x += width
        if index < len(gaps):
            canvas.arrow(x + 3, top + height / 2, x + gaps[index] - 3, top + height / 2)
            canvas.text(f"{x + gaps[index] / 2:.1f}", top + height / 2 - 8, handed, 11, FAINT, "middle")
            x += gaps[index]
    return canvas.svg()


HOPPER_ROWS = (  # tensor, the thread that feeds it, what lies in shared memory, barriers
    ("Q", "warp 0: QueryFeeder", "64 rows per warpgroup", "q_full, q_empty"),
    ("K", "warp 1: KeyFeeder", "ring of K blocks", "k_full, k_empty"),
    ("V", "warp 2: KeyFeeder", "ring of V blocks", "v_full, v_empty"),
)


def hopper_roles():
    """One CTA of the Hopper forward: who moves what, and which barriers stand in between."""
    top, row, height = 58, 66, 46
    bottom = top + 3 * row + 66
    canvas = Canvas(960, bottom + 14)
    columns = ((14, "global memory"), (142, "producer warpgroup"), (390, "shared memory"), (690, "consumer warpgroups"))
    for x, title in columns:
        canvas.text(x, 26, title, 13, INK, weight="bold")
    canvas.text(142, 43, "one thread of each warp issues TMA copies", 11, FAINT)
    for number, (name, feeder, place, barriers) in enumerate(HOPPER_ROWS):
        y = top + number * row
        canvas.box(14, y, 84, height, COLORS[3], name)
        canvas.box(142, y, 170, height, COLORS[1], feeder)
        canvas.box(390, y, 170, height, COLORS[0], name, (place,))
        middle = y + height / 2
        canvas.arrow(101, middle, 139, middle)
        canvas.arrow(315, middle, 387, middle)
        canvas.text(351, middle - 8, "TMA", 11, FAINT, "middle")
        canvas.arrow(563, middle, 687, middle)
        canvas.text(625, middle - 8, "WGMMA", 11, FAINT, "middle")
        canvas.text(625, middle + 16, barriers, 11, FAINT, "middle")
    step = ("64 rows of Q each, block by block of keys:", "", "S = Q Kᵀ", "mask, softmax: P", "O += P V", "")
    canvas.box(690, top, 256, 2 * row + height, COLORS[2], "warpgroups 1 to 4", (*step, "S, P and O stay in registers"))
    y = bottom - 52
    canvas.box(14, y, 84, height, COLORS[3], "O, LSE")
    canvas.box(390, y, 170, height, COLORS[0], "O", ("16 x 64 panels per warp",))
    canvas.box(690, y, 256, height, COLORS[2], "epilogue", ("O / row sum, under the next tile",))
    middle = y + height / 2
    canvas.arrow(687, middle, 563, middle)
    canvas.text(625, middle - 8, "STMATRIX", 11, FAINT, "middle")
    canvas.arrow(387, middle, 101, middle)
    canvas.text(244, middle - 8, "TMA", 11, FAINT, "middle")
    return canvas.svg()


def hopper_pipeline():
    """Two consumer warpgroups over four turns: GEMMs back to back, each softmax under other GEMMs."""
    unit, top, height, left, turns = 88, 58, 26, 190, 4
    canvas = Canvas(left + 2 * turns * unit + 150, top + 4 * 42 + 56)
    for turn in range(turns + 1):
        x = left + 2 * turn * unit
        canvas.elements.append(f'<path d="M{x} {top - 8}V{top + 4 * 42 - 4}" stroke="{HIDDEN}" stroke-width="1.4"/>')
        if turn < turns:
            canvas.text(x + unit, top - 16, f"turn of warpgroup {turn % 2 + 1}", 11, FAINT, "middle")

    def span(lane, begin, length, color, text):
        canvas.cell(left + begin * unit, top + lane * 42, length * unit, height, color)
        canvas.text(left + (begin + length / 2) * unit, top + lane * 42 + 17, text, 11, ON_COLOR, "middle")

    for lane, name in enumerate(("1: tensor cores", "1: softmax", "2: tensor cores", "2: softmax")):
        canvas.text(left - 14, top + lane * 42 + 17, f"warpgroup {name}", 12, INK, "end")
    for warpgroup in range(2):
        for step in range(2):
            begin, block = 4 * step + 2 * warpgroup, f"n - {step}" if step else "n"
            before = "n" if step else "n + 1"
            span(2 * warpgroup, begin, 1, COLORS[0], f"Q K({block})ᵀ")
            span(2 * warpgroup, begin + 1, 1, COLORS[2], f"P V({before})")
            span(2 * warpgroup + 1, begin + 1, 2.4, COLORS[1], f"softmax of S({block})")
    canvas.text(left - 14, top - 16, "time →", 11, FAINT, "end")
    canvas.text(
        left, top + 4 * 42 + 18, "A warpgroup issues both products, passes the turn on and takes the softmax", 12, FAINT
    )
    canvas.text(left, top + 4 * 42 + 36, "while its own P V and the other warpgroup's products run.", 12, FAINT)
    return canvas.svg()


FIGURES = {
    "masks": masks,
    "orders": orders,
    "causal_tiles": causal_tiles,
    "call": lambda: flow(CALL, below=(1, "Status: an error message")),
    "backward_phases": lambda: flow(BACKWARD),
    "hopper_roles": hopper_roles,
    "hopper_pipeline": hopper_pipeline,
}


def main():
    check = sys.argv[1:] == ["--check"]
    for name, figure in FIGURES.items():
        path = FOLDER / f"{name}.svg"
        if not check:
            path.write_text(figure(), encoding="utf-8")
        elif path.read_text(encoding="utf-8") != figure():
            sys.exit(f"{path.name} is outdated: run draw.py without --check")


if __name__ == "__main__":
    main()
