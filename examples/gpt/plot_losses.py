# SPDX-License-Identifier: Apache-2.0
"""Draws the losses that train.py wrote, and how far they lie from those of PyTorch's attention:

python examples/gpt/plot_losses.py losses.json --out losses.svg
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

BASE = "sdpa"
STYLES: dict[str, dict[str, Any]] = {
    "strobe": {"linewidth": 3.5, "color": "#D55E00", "alpha": 0.6},
    "sdpa": {"linewidth": 1.0, "color": "black"},
    "math": {"linewidth": 1.5, "color": "#009E73", "linestyle": ":"},
}


def differences(losses: dict[str, list[float]]) -> dict[str, list[float]]:
    """By attention: how far each step's loss is from the one with PyTorch's own."""
    if BASE not in losses:
        return {}
    pairs = {name: zip(curve, losses[BASE], strict=True) for name, curve in losses.items() if name != BASE}
    return {name: [abs(a - b) for a, b in pair] for name, pair in pairs.items()}


def draw(record: dict[str, Any], path: Path) -> None:
    mpl.rcParams.update({"svg.hashsalt": "strobe", "svg.fonttype": "none"})  # the same curves give the same file
    figure, (above, below) = pyplot.subplots(2, figsize=(7, 5), height_ratios=(3, 1), sharex=True, layout="constrained")
    for axes, curves in ((above, record["losses"]), (below, differences(record["losses"]))):
        for name, curve in curves.items():
            axes.plot(range(1, len(curve) + 1), curve, label=name, **STYLES[name])
        axes.grid(alpha=0.3)
    above.set(ylabel="cross entropy per character", title=f"A small GPT on the King James Bible: {record['device']}")
    above.legend()
    below.set(xlabel="step", ylabel=f"apart from {BASE}")
    below.set_ylim(bottom=0)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="what train.py wrote")
    parser.add_argument("--out", type=Path, default=Path("losses.svg"))
    options = parser.parse_args()
    draw(json.loads(options.json.read_text(encoding="utf-8")), options.out)


if __name__ == "__main__":
    main()
