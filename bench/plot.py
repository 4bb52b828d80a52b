# SPDX-License-Identifier: Apache-2.0
"""Draws what `strobe bench --json FILE` or gpu/attention.py measured: throughput by sequence length.

One panel for each head_dim (across), and pass and mask (down); the implementations share its axes. Needs matplotlib.

    strobe bench --head-dim 64,128 --json bench.json
    python bench/plot.py bench.json --pass forward --dtype float32 --out forward.svg
    python bench/plot.py h200.json --pass forward backward --dtype bfloat16 --out both.svg
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

# Colours that every kind of colour vision tells apart: the palette of Okabe and Ito, and an indigo of Paul Tol's.
# Markers and dashes differ too, for print. What lies nearest to Strobe's line looks least like it.
STYLES = {
    "strobe": ("Strobe", "#D55E00", "o"),
    "flash_attention_3": ("FlashAttention-3", "#332288", "s"),
    "flash_attention_2": ("FlashAttention-2", "#56B4E9", "D"),
    "cudnn": ("cuDNN", "#009E73", "^"),
    "pytorch": ("PyTorch", "#0072B2", "s"),
    "standard": ("standard attention", "#CC79A7", "v"),
    "probe": ("FMA probe", "#777777", ""),
}
DASHES = {"flash_attention_3": (0, (5, 2)), "cudnn": (0, (2, 1.5)), "probe": (0, (4, 3)), "copy": (0, (4, 3))}
APPEARANCE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "svg.fonttype": "none",
    "svg.hashsalt": "strobe",  # the same file for the same numbers
}


def chosen(rows, key, wanted):
    """The rows whose `key` is one of `wanted`; all of them when there is only one value to choose from."""
    values = list(dict.fromkeys(row[key] for row in rows))
    if not wanted and len(values) > 1:
        sys.exit(f"plot.py: the file holds several; choose with --{key}: {', '.join(map(str, values))}")
    for value in wanted:
        if value not in map(str, values):
            sys.exit(f"plot.py: no row has {key} {value}; there are {', '.join(map(str, values))}")
    return [row for row in rows if not wanted or str(row[key]) in wanted]


def line_style(implementation, color, marker):
    """Strobe's line is wide and lies below the others, so that a line that runs along it can be seen on it."""
    ours = implementation == "strobe"
    return {
        "color": color,
        "marker": marker,
        "markersize": 7 if ours else 4.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.7,
        "linewidth": 3.2 if ours else 1.5,
        "linestyle": DASHES.get(implementation, "solid"),
        "zorder": 3 if ours else 4,
    }


def label_lines(axes, gap=11):
    """Names the lines at their right ends: texts at least `gap` points apart, joined to their lines."""
    lines = sorted(axes.get_lines(), key=lambda line: line.get_ydata()[-1])
    points = 72 / axes.figure.dpi
    heights = [axes.transData.transform((1, line.get_ydata()[-1]))[1] * points for line in lines]
    for at in range(1, len(heights)):
        heights[at] = max(heights[at], heights[at - 1] + gap)
    for line, height in zip(lines, heights, strict=True):
        end = line.get_xydata()[-1]
        below = axes.transData.transform(end)[1] * points
        axes.annotate(
            line.get_label(),
            end,
            xytext=(16, height - below),
            textcoords="offset points",
            fontsize=9,
            va="center",
            color="#222222",
            fontweight="bold" if line.get_label() == "Strobe" else "normal",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.8, "shrinkA": 0, "shrinkB": 4},
        )


def legend_below_title(canvas, title, handles, labels):
    """The title and, in a line below it, what the lines are; returns the height in inches that is left for panels."""
    height = canvas.get_figheight()
    head = canvas.suptitle(title, x=0.02, y=1 - 0.1 / height, ha="left", va="top", fontsize=12, fontweight="bold")
    head.set_in_layout(False)  # its room is in what is returned
    canvas.legend(
        handles,
        labels,
        ncols=len(labels),
        loc="upper left",
        bbox_to_anchor=(0.012, 1 - 0.3 / height),
        frameon=False,
        fontsize=9,
        handlelength=2.8,
        columnspacing=1.2,
    )
    return height - 0.55


def save(canvas, out):
    """The same bytes for the same figure."""
    canvas.savefig(out, dpi=160, metadata={"Date": None} if out.suffix == ".svg" else {})


def draw_panel(axes, rows, unit):
    """One line for each implementation."""
    seqlens = sorted({row["seqlen"] for row in rows})
    for implementation, (label, color, marker) in STYLES.items():
        points = sorted(
            (row["seqlen"], row["tflops"] * unit) for row in rows if row["implementation"] == implementation
        )
        if not points:
            continue
        axes.plot(*zip(*points, strict=True), label=label, **line_style(implementation, color, marker))
    axes.set_xscale("log", base=2)
    axes.set_xticks(seqlens, [f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n) for n in seqlens])
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.grid(visible=False, axis="x")


def figure(rows, title):
    head_dims = sorted({(row["head_dim"], row["head_dim_v"]) for row in rows})
    passes = list(dict.fromkeys(row["pass"] for row in rows))
    lines = list(itertools.product(passes, sorted({row["causal"] for row in rows})))
    giga = max(row["tflops"] for row in rows) < 1.0
    size = (2.2 + 2.7 * len(head_dims), 1.1 + 2.3 * len(lines))
    canvas, grid = plt.subplots(len(lines), len(head_dims), figsize=size, sharey=True, sharex=True, squeeze=False)
    for axes_of_line, (which, causal) in zip(grid, lines, strict=True):
        for axes, (head_dim, head_dim_v) in zip(axes_of_line, head_dims, strict=True):
            shape = f"head_dim {head_dim}" if head_dim == head_dim_v else f"head_dim {head_dim}, V {head_dim_v}"
            here = (which, head_dim, head_dim_v, causal)
            panel = [r for r in rows if (r["pass"], r["head_dim"], r["head_dim_v"], r["causal"]) == here]
            draw_panel(axes, panel, 1e3 if giga else 1.0)
            of_pass = f", {which}" if len(passes) > 1 else ""
            axes.set_title(
                f"{shape}, {'causal' if causal else 'full'}{of_pass}", loc="left", fontsize=10, color="#222222"
            )
        axes_of_line[0].set_ylabel("GFLOP/s" if giga else "TFLOP/s")
    grid[0][0].set_ylim(bottom=0)  # of all panels, and only once every line is drawn: it ends the scaling to the data
    for axes in grid[-1]:
        axes.set_xlabel("sequence length")
    handles = {label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    top = legend_below_title(canvas, title, handles.values(), handles.keys())
    canvas.tight_layout(rect=(0, 0, 1 - 1.35 / size[0], top / size[1]))
    for axes_of_line in grid:
        label_lines(axes_of_line[-1])
    return canvas


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="what strobe bench --json wrote")
    parser.add_argument("--pass", dest="which", nargs="+", default=[], help="forward, backward or both")
    parser.add_argument("--dtype", nargs=1, default=[], help="float32, float16 or bfloat16")
    parser.add_argument("--threads", nargs=1, default=[], help="workers")
    parser.add_argument("--out", type=Path, default=Path("bench.svg"), help=".svg, .png or .pdf (default bench.svg)")
    arguments = parser.parse_args()

    rows = json.loads(arguments.json.read_text(encoding="utf-8"))["rows"]
    for key, wanted in (("pass", arguments.which), ("dtype", arguments.dtype), ("threads", arguments.threads)):
        rows = chosen(rows, key, wanted)
    first = rows[0]
    threads = f", {first['threads']} thread{'s' if first['threads'] > 1 else ''}" if first["engine"] == "cpu" else ""
    plt.rcParams.update(APPEARANCE)
    passes = " and ".join(dict.fromkeys(row["pass"] for row in rows))
    title = f"Attention {passes}, {first['dtype']}: {first['device']}{threads}"
    save(figure(rows, title), arguments.out)


if __name__ == "__main__":
    main()
