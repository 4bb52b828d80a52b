# SPDX-License-Identifier: Apache-2.0
"""Draws what two GPUs do in a forward and a backward that they share, by PyTorch's profiler.

Four lanes for each GPU: the current stream, the two others that the forward launches on, and the stream of copies. The
panels below enlarge the beginning, the turn from forward to backward, and the end. Needs matplotlib.

    python bench/plot_timeline.py docs/benchmarks/h100/two_gpus.json --out two_gpus.svg
"""

import argparse
import json
from pathlib import Path

from plot import APPEARANCE, legend_below_title, plt, save

KINDS = {
    "forward": ("forward", "#0072b2"),
    "backward": ("backward", "#d55e00"),
    "copy": ("copy from or to the other GPU", "#009e73"),
    "join": ("keys beside values", "#cc79a7"),
    "sum": ("sums of gradients", "#e69f00"),
    "barrier": ("barrier", "#777777"),
}
LANES = ("stream", "second", "third", "copies")
ZOOMS = 3
ZOOM_MS = 0.5


def draw(axes, gpus):
    """All bars, in milliseconds, the first GPU on top."""
    for number, rows in enumerate(gpus):
        for start, length, lane, kind in rows:
            place = -(number * (len(LANES) + 1) + lane)
            axes.barh(place, length / 1e3, left=start / 1e3, height=0.86, color=KINDS[kind][1], linewidth=0)
    axes.tick_params(length=0)
    axes.grid(visible=False, axis="y")


def name_lanes(axes, gpus):
    places = [-(number * (len(LANES) + 1) + lane) for number in range(len(gpus)) for lane in range(len(LANES))]
    names = [f"GPU {number}, {lane}" for number in range(len(gpus)) for lane in LANES]
    axes.set_yticks(places, names, fontsize=8)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="the timeline")
    parser.add_argument("--out", type=Path, default=Path("two_gpus.svg"), help=".svg, .png or .pdf")
    arguments = parser.parse_args()
    measured = json.loads(arguments.json.read_text(encoding="utf-8"))
    gpus = measured["GPUs"]
    end = max(start + length for rows in gpus for start, length, *_ in rows) / 1e3
    turn = min(start for start, _, _, kind in gpus[0] if kind == "backward") / 1e3
    plt.rcParams.update(APPEARANCE)
    size = (10.8, 6.4)
    canvas = plt.figure(figsize=size)
    grid = canvas.add_gridspec(2, ZOOMS)
    whole = canvas.add_subplot(grid[0, :])
    draw(whole, gpus)
    name_lanes(whole, gpus)
    whole.set_xlim(0, end)
    for place, first in enumerate((0.0, turn - 0.6 * ZOOM_MS, end - ZOOM_MS)):
        axes = canvas.add_subplot(grid[1, place])
        draw(axes, gpus)
        axes.set_xlim(first, first + ZOOM_MS)
        axes.set_xlabel("ms")
        if place == 0:
            name_lanes(axes, gpus)
        else:
            axes.set_yticks([])
    heads, heads_kv, head_dim = measured["heads"]
    tokens = measured["tokens of a GPU"]
    title = f"{tokens} causal tokens on each of two H100s, {heads} heads of {head_dim}, {heads_kv} of keys: gather"
    handles = [plt.Rectangle((0, 0), 1, 1, color=color, linewidth=0) for _, color in KINDS.values()]
    top = legend_below_title(canvas, title, handles, [label for label, _ in KINDS.values()])
    canvas.tight_layout(rect=(0, 0, 1, top / size[1]))
    save(canvas, arguments.out)


if __name__ == "__main__":
    main()
