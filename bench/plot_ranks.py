# SPDX-License-Identifier: Apache-2.0
"""Draws what bench/gpu/context_parallel.py measured: shares of ideal, one GPU's time for its part.

One panel for each number of tokens a GPU, one row for each mask and way to share it; bars are the forward and both
passes of calls in a row, and a line across a bar is what the model predicted of it. Needs matplotlib.

    python bench/plot_ranks.py ranks_4.json --out ranks_4.svg
"""

import argparse
import json
import sys
from pathlib import Path

from plot import APPEARANCE, legend_below_title, plt, save

WAY = "in a row"
PASSES = {"forward": ("forward", "#0072B2"), "both": ("forward and backward", "#D55E00")}
SCHEMES = {"gather": "gather", "all_to_all": "all-to-all", "ring": "ring"}
OWN_LAYOUTS = {"causal": "zigzag", "deterministic": "zigzag", "documents": "documents", "window": "contiguous"}


def name_of(cell):
    """Mask and scheme; the layout where another is the mask's own."""
    scheme = SCHEMES.get(cell["scheme"], cell["scheme"])
    layout = cell["layout"]
    other = f", {layout}" if OWN_LAYOUTS.get(cell["mask"], layout) != layout else ""
    return f"{cell['mask']}, {scheme}{other}"


def draw_panel(axes, cells, names):
    """A row for each name, from the top, with what was measured of it."""
    for cell in cells:
        place = len(names) - 1 - names.index(name_of(cell))
        for index, (name, (_, color)) in enumerate(PASSES.items()):
            height = place + 0.2 - 0.4 * index
            share = 100 * cell["share"][name][WAY]
            axes.barh(height, share, height=0.38, color=color, linewidth=0)
            axes.text(1.5, height, f"{share:.0f}", ha="left", va="center", fontsize=7, color="white")
            if name in cell.get("model", {}):
                model = 100 * cell["model"][name]
                axes.plot([model, model], [height - 0.19, height + 0.19], color="#222222", linewidth=1.6)
    axes.set_yticks(range(len(names)), names[::-1], fontsize=8)
    axes.set_xlim(0, 105)
    axes.tick_params(length=0)
    axes.grid(visible=False, axis="y")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="what bench/gpu/context_parallel.py wrote")
    parser.add_argument("--out", type=Path, default=Path("ranks.svg"), help=".svg, .png or .pdf")
    arguments = parser.parse_args()
    measured = json.loads(arguments.json.read_text(encoding="utf-8"))
    cells = [x for x in measured["cells"] if "share" in x]
    if not cells:
        sys.exit(f"plot_ranks.py: {arguments.json} has no cell that was measured")
    tokens = sorted({x["tokens"] for x in cells})
    names = list(dict.fromkeys(map(name_of, cells)))
    plt.rcParams.update(APPEARANCE)
    size = (2.6 + 2.8 * len(tokens), 1.5 + 0.34 * len(names))
    canvas, panels = plt.subplots(1, len(tokens), figsize=size, sharey=True, squeeze=False)
    for axes, number in zip(panels[0], tokens, strict=True):
        draw_panel(axes, [x for x in cells if x["tokens"] == number], names)
        label = f"{number // 1024}k" if number >= 1024 else str(number)
        axes.set_title(f"{label} tokens a GPU", loc="left", fontsize=10, color="#222222")
        axes.set_xlabel("% of ideal")
    heads, heads_kv, head_dim = measured["heads"]
    title = f"{measured['GPUs']} x {measured['device']}: {heads} heads of {head_dim}, {heads_kv} of keys"
    handles = [plt.Rectangle((0, 0), 1, 1, color=color, linewidth=0) for _, color in PASSES.values()]
    handles.append(plt.Line2D([0], [0], color="#222222", linewidth=1.6))
    labels = [*(label for label, _ in PASSES.values()), "the model"]
    top = legend_below_title(canvas, title, handles, labels)
    canvas.tight_layout(rect=(0, 0, 1, top / size[1]))
    save(canvas, arguments.out)


if __name__ == "__main__":
    main()
