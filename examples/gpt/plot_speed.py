# SPDX-License-Identifier: Apache-2.0
"""Draws the throughputs that speed.py wrote:

python examples/gpt/plot_speed.py speed.json --out speed.svg
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

LABELS = {"strobe": "Strobe", "cudnn": "cuDNN", "flash": "FlashAttention-2", "math": "standard", "sdpa": "sdpa"}

COLORS = {"strobe": "#D55E00", "cudnn": "#009E73", "flash": "#56B4E9", "math": "#CC79A7", "sdpa": "#0072B2"}


def draw(record: dict[str, Any], path: Path) -> None:
    mpl.rcParams.update({"svg.hashsalt": "strobe", "svg.fonttype": "none"})  # the same figures give the same file
    groups = list(dict.fromkeys((row["size"], row["context"]) for row in record["rows"]))
    names = list(dict.fromkeys(row["attention"] for row in record["rows"]))
    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        rows = {(row["size"], row["context"]): row for row in record["rows"] if row["attention"] == name}
        places = [group + (i - (len(names) - 1) / 2) * width for group in range(len(groups))]
        heights = [rows[group].get("tflops", 0.0) for group in groups]
        texts = [f"{height:.0f}" if height else "out of\nmemory" for height in heights]
        bars = axes.bar(places, heights, width, label=LABELS[name], color=COLORS[name])
        axes.bar_label(bars, texts, fontsize=7)
    axes.set_xticks(range(len(groups)), [f"{size.upper()}, {context} tokens" for size, context in groups])
    axes.set(ylabel="model TFLOP/s", title=f"Training a GPT: {record['device']}")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(ncols=len(names), fontsize=8, frameon=False, loc="upper left")
    axes.margins(y=0.25)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="what speed.py wrote")
    parser.add_argument("--out", type=Path, default=Path("speed.svg"))
    options = parser.parse_args()
    draw(json.loads(options.json.read_text(encoding="utf-8")), options.out)


if __name__ == "__main__":
    main()
