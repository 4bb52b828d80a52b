# SPDX-License-Identifier: Apache-2.0
"""Draws what `strobe bench --seqlen-k ... --json FILE` measured: GB/s of few queries by number of keys.

One panel for each dtype and number of queries; the copy in the same run is the dashed line. Needs matplotlib.

    strobe bench --pass forward --mask full --seqlen 1,4,16 --seqlen-k 512,4096,32768 --json decode.json
    python bench/plot_decode.py decode.json --out decode.svg
"""

import argparse
import json
from pathlib import Path

from plot import APPEARANCE, STYLES, legend_below_title, line_style, plt, save

LINES = {**STYLES, "copy": ("copy, bytes read and written", "#777777", "")}


def draw_panel(axes, rows):
    """One line for each implementation."""
    lengths = sorted({row["seqlen_k"] for row in rows})
    for implementation, (label, color, marker) in LINES.items():
        points = sorted((row["seqlen_k"], row["gbps"]) for row in rows if row["implementation"] == implementation)
        if not points:
            continue
        axes.plot(*zip(*points, strict=True), label=label, **line_style(implementation, color, marker))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths])
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.grid(visible=False, axis="x")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="what strobe bench --seqlen-k --json wrote, of one head_dim")
    parser.add_argument("--out", type=Path, default=Path("decode.svg"), help=".svg, .png or .pdf (default decode.svg)")
    arguments = parser.parse_args()

    rows = json.loads(arguments.json.read_text(encoding="utf-8"))["rows"]
    first = rows[0]
    plt.rcParams.update(APPEARANCE)
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    queries = sorted({row["seqlen"] for row in rows})
    size = (1.2 + 3.0 * len(queries), 1.2 + 2.6 * len(dtypes))
    canvas, grid = plt.subplots(len(dtypes), len(queries), figsize=size, sharey=True, squeeze=False)
    for line, dtype in zip(grid, dtypes, strict=True):
        for axes, count in zip(line, queries, strict=True):
            draw_panel(axes, [row for row in rows if row["seqlen"] == count and row["dtype"] == dtype])
            title = f"{count} quer{'y' if count == 1 else 'ies'}, {dtype}"
            axes.set_title(title, loc="left", fontsize=10, color="#222222")
        line[0].set_ylabel("GB/s of Q, K, V and O")
    grid[0][0].set_ylim(bottom=0)
    for axes in grid[-1]:
        axes.set_xlabel("keys")
    threads = f"{first['threads']} thread{'s' if first['threads'] > 1 else ''}"
    heads = f"{first['heads']} heads of {first['head_dim']}, {first['heads_kv']} of keys"
    title = f"Few queries, {heads}: {first['device']}, {threads}"
    top = legend_below_title(canvas, title, *grid[0][0].get_legend_handles_labels())
    canvas.tight_layout(rect=(0, 0, 1, top / size[1]))
    save(canvas, arguments.out)


if __name__ == "__main__":
    main()
