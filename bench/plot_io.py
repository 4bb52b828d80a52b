# SPDX-License-Identifier: Apache-2.0
"""Draws what `strobe bench --io --json FILE` counted: memory traffic over the fast memory's size and over seqlen.

The dashed lines are the papers' orders of growth; their constants are fitted to the counts (the geometric mean of count
over formula, for head_dim <= M <= seqlen * head_dim, where the formulas are said to hold) and written beside them.
Needs matplotlib.

    strobe bench --io --head-dim 64 --seqlen 512,1024,2048,4096,8192,16384 --fast-memory 2048,...,1048576 --json io.json
    python bench/plot_io.py io.json --seqlen 4096 --fast-memory 32768 --out io.svg
"""

import argparse
import json
import math
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from plot import APPEARANCE, legend_below_title, save

STYLES = {
    "standard": ("standard attention", "#CC79A7", "v"),
    "flash_attention": ("FlashAttention", "#0072B2", "s"),
    "flash_attention_2": ("FlashAttention-2", "#D55E00", "o"),
    "butterfly": ("block-sparse butterfly", "#009E73", "D"),
    "local": ("block-sparse local", "#E69F00", "^"),
}
# What each curve of the papers is fitted to: its text and its value for seqlen N, head_dim d and M.
GROWTH = {
    "standard": ("(N d + N²)", lambda n, d, _: n * d + n * n),
    "flash_attention": ("N² d² / M", lambda n, d, m: n * n * d * d / m),
    "flash_attention_2": ("N² d² / M", lambda n, d, m: n * n * d * d / m),
}
AXES = {"fast_memory": "elements of fast memory, M", "seqlen": "sequence length, N"}


def formula(order, row):
    return GROWTH[order][1](row["seqlen"], row["head_dim"], row["fast_memory"])


def constant(order, rows):
    """What the formula has to be multiplied by to lie amid the counts."""
    ratios = [
        math.log((row["loads"] + row["stores"]) / formula(order, row))
        for row in rows
        if row["head_dim"] <= row["fast_memory"] <= row["seqlen"] * row["head_dim"]
    ]
    return math.exp(sum(ratios) / len(ratios))


def short(number):
    """4096 as 4k."""
    for unit, suffix in ((2**20, "M"), (2**10, "k")):
        if number >= unit and number % unit == 0:
            return f"{number // unit}{suffix}"
    return str(number)


def draw_panel(axes, rows, x):
    """The counts of every order, and the fitted curves with a legend of their constants."""
    curves = []
    for order, (label, color, marker) in STYLES.items():
        line = sorted((row for row in rows if row["order"] == order), key=lambda row: row[x])
        places = [row[x] for row in line]
        counts = [row["loads"] + row["stores"] for row in line]
        axes.plot(
            places, counts, label=label, color=color, marker=marker, markersize=5, markeredgecolor="white", zorder=3
        )
        if order not in GROWTH:
            continue
        factor = constant(order, line)
        curve = [factor * formula(order, row) for row in line]
        text = f"{factor:.1f} {GROWTH[order][0]}"
        curves += axes.plot(places, curve, color=color, linewidth=1.2, linestyle=(0, (4, 3)), zorder=2, label=text)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({row[x] for row in rows})[:: 2 if x == "fast_memory" else 1]
    axes.set_xticks(ticks, [short(tick) for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.set_xlabel(AXES[x])
    axes.legend(handles=curves, frameon=False, fontsize=9, loc="upper right" if x == "fast_memory" else "upper left")


def figure(rows, seqlen, fast_memory):
    canvas, grid = plt.subplots(2, 2, figsize=(9, 7.8), sharey="row")
    for row_of_axes, which in zip(grid, ("forward", "backward"), strict=True):
        of_pass = [row for row in rows if row["pass"] == which]
        over_memory = [row for row in of_pass if row["seqlen"] == seqlen]
        over_seqlen = [row for row in of_pass if row["fast_memory"] == fast_memory]
        for axes, part, x in zip(row_of_axes, (over_memory, over_seqlen), AXES, strict=True):
            draw_panel(axes, part, x)
            fixed = f"M = {short(fast_memory)}" if x == "seqlen" else f"N = {short(seqlen)}"
            axes.set_title(f"{which}, {fixed}", loc="left", fontsize=10, color="#222222")
        row_of_axes[0].set_ylabel("elements moved")
    title = f"Elements moved between slow and fast memory, counted: one head, d = {rows[0]['head_dim']}"
    orders = [line for line in grid[0][0].get_lines() if line.get_marker() != "None"]
    top = legend_below_title(canvas, title, orders, [line.get_label() for line in orders])
    canvas.tight_layout(rect=(0, 0, 1, top / canvas.get_figheight()))
    return canvas


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="what strobe bench --io --json wrote, of one head_dim")
    parser.add_argument("--seqlen", type=int, default=4096, help="of the panels over M")
    parser.add_argument("--fast-memory", type=int, default=32768, help="of the panels over seqlen")
    parser.add_argument("--out", type=Path, default=Path("io.svg"), help=".svg, .png or .pdf (default io.svg)")
    arguments = parser.parse_args()

    rows = json.loads(arguments.json.read_text(encoding="utf-8"))["rows"]
    plt.rcParams.update(APPEARANCE)
    save(figure(rows, arguments.seqlen, arguments.fast_memory), arguments.out)


if __name__ == "__main__":
    main()
