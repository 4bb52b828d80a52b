# SPDX-License-Identifier: Apache-2.0
"""Draws what gpu/traffic.py read from a GPU's counters: bytes moved by DRAM and L2, and the count of the algorithm.

python bench/plot_traffic.py traffic.json --out traffic.svg
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from plot import APPEARANCE, legend_below_title

BARS = {
    "standard": ("standard attention", "#CC79A7"),
    "strobe": ("Strobe", "#D55E00"),
    "butterfly": ("Strobe, butterfly block mask", "#009E73"),
}
LEVELS = {"dram_bytes": "DRAM", "l2_bytes": "L2"}


def short(number):
    """Two digits, more only before the point."""
    return f"{number:.2g}" if number < 100 else f"{number:.0f}"


def draw_panel(axes, rows, level):
    seqlens = sorted({row["seqlen"] for row in rows})
    width = 0.8 / len(BARS)
    for at, (name, (label, color)) in enumerate(BARS.items()):
        places = [i + (at - 1) * width for i in range(len(seqlens))]
        chosen = [next(r for r in rows if r["seqlen"] == n and r["implementation"] == name) for n in seqlens]
        bars = axes.bar(places, [r[level] / 1e9 for r in chosen], 0.92 * width, color=color, label=label)
        axes.bar_label(bars, [short(r[level] / 1e9) for r in chosen], fontsize=7, padding=1, color="#444444")
        if level == "l2_bytes":
            counted = [r["io_bytes"] / 1e9 for r in chosen]
            axes.scatter(places, counted, marker="_", s=120, color="black", label="counted by bench --io", zorder=3)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.margins(y=0.12)
    axes.set_xticks(range(len(seqlens)), [f"{n // 1024}k" for n in seqlens])
    axes.grid(visible=False, axis="x")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path)
    parser.add_argument("--out", type=Path, default=Path("traffic.svg"))
    options = parser.parse_args()
    record = json.loads(options.json.read_text(encoding="utf-8"))
    with mpl.rc_context(APPEARANCE):
        figure, panels = plt.subplots(2, 2, figsize=(9, 6), sharex=True)
        for line, which in zip(panels, ("forward", "backward"), strict=True):
            rows = [row for row in record["rows"] if row["pass"] == which]
            for axes, (level, name) in zip(line, LEVELS.items(), strict=True):
                draw_panel(axes, rows, level)
                axes.set_title(f"{which}, {name}", loc="left", fontsize=10)
        for axes in panels[1]:
            axes.set_xlabel("sequence length")
        for axes in panels[:, 0]:
            axes.set_ylabel("GB")
        handles, labels = panels[0][1].get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True))
        title = f"{record['device']}, {record['heads']} heads of {record['head_dim']}, bfloat16"
        top = legend_below_title(figure, title, named.values(), named.keys())
        figure.tight_layout(rect=(0, 0, 1, top / figure.get_figheight()))
        figure.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
