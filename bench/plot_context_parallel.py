# SPDX-License-Identifier: Apache-2.0
"""Draws what bench/context_parallel_model.py wrote: the share of ideal of forward and backward by number of GPUs.

One panel for each number of tokens a GPU; dashed lines are InfiniBand, others NVLink. Needs matplotlib.

    python bench/plot_context_parallel.py docs/benchmarks/context_parallel.json --out context_parallel.svg
"""

import argparse
import json
from pathlib import Path

from plot import APPEARANCE, legend_below_title, plt, save

SCHEMES = {
    "gather": ("gather", "#0072b2"),
    "all_to_all": ("all-to-all", "#d55e00"),
    "ring": ("ring", "#009e73"),
    "two_levels": ("two levels, hosts of 8", "#777777"),
}
LINKS = {"NVLink": "-", "InfiniBand": "--"}


def draw_panel(axes, rows):
    """One line for each scheme and link."""
    gpus = sorted({row["GPUs"] for row in rows})
    for scheme, (label, color) in SCHEMES.items():
        for link, style in LINKS.items():
            of_line = [row for row in rows if row["scheme"] == scheme and row["link"] == link]
            if of_line:
                named = link == "NVLink" or scheme == "two_levels"
                places, shares = zip(*((row["GPUs"], 100 * row["both"]) for row in of_line), strict=True)
                axes.plot(places, shares, style, color=color, label=label if named else "_", linewidth=1.6)
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [str(n) for n in gpus])
    axes.set_ylim(50, 101)
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.grid(visible=False, axis="x")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="what bench/context_parallel_model.py wrote")
    parser.add_argument("--out", type=Path, default=Path("context_parallel.svg"), help=".svg, .png or .pdf")
    arguments = parser.parse_args()
    rows = json.loads(arguments.json.read_text(encoding="utf-8"))["rows"]
    tokens = sorted({row["tokens"] for row in rows})
    plt.rcParams.update(APPEARANCE)
    size = (3.6 * len(tokens), 3.8)
    canvas, panels = plt.subplots(1, len(tokens), figsize=size, sharey=True)
    for axes, number in zip(panels, tokens, strict=True):
        draw_panel(axes, [row for row in rows if row["tokens"] == number])
        axes.set_title(f"{number // 1024}k tokens a GPU", loc="left", fontsize=10, color="#222222")
        axes.set_xlabel("GPUs")
    panels[0].set_ylabel("% of ideal, forward and backward")
    title = "Context parallelism by the model: 32 heads of 128, 8 of keys, causal, H100; dashed: InfiniBand"
    handles, labels = panels[0].get_legend_handles_labels()
    solid = [i for i, label in enumerate(labels) if label in {x for x, _ in SCHEMES.values()}]
    top = legend_below_title(canvas, title, [handles[i] for i in solid], [labels[i] for i in solid])
    canvas.tight_layout(rect=(0, 0, 1, top / size[1]))
    save(canvas, arguments.out)


if __name__ == "__main__":
    main()
