# SPDX-License-Identifier: Apache-2.0
"""Draws what `strobe verify --json FILE` wrote: errors against float64, Strobe's beside standard attention's.

    strobe verify --json accuracy.json
    python bench/plot_accuracy.py accuracy.json --out accuracy.svg

Above: root mean square errors. Below: the worst element's error as a share of its bound, which is for attention that
accumulates in float32 and rounds once; standard attention rounds S and P to the inputs' dtype, too. Needs matplotlib.
"""

import argparse
import json
from pathlib import Path

IMPLEMENTATIONS = {"strobe": ("Strobe", "#D55E00", "o"), "standard": ("standard attention", "#CC79A7", "v")}
TITLES = {
    "normal": "Errors against float64: inputs from N(0, 1)",
    "outliers": "Errors against float64: inputs with outliers, N(0, 1) + N(0, 100) Bernoulli(0.001)",
}
MEASURES = {"rmse": "RMSE against float64", "worst_of_bound": "worst element / its bound"}


def draw_panel(axes, rows, measure):
    tensors = list(dict.fromkeys(row["tensor"] for row in rows))
    for implementation, (label, color, marker) in IMPLEMENTATIONS.items():
        errors = {row["tensor"]: row[measure] for row in rows if row["implementation"] == implementation}
        values = [errors[tensor] for tensor in tensors]
        style = {"marker": marker, "markersize": 8, "markeredgecolor": "white", "linestyle": "none"}
        axes.plot(tensors, values, color=color, label=label, zorder=3, **style)
    axes.set_yscale("log")
    axes.margins(x=0.12)
    axes.tick_params(which="both", length=0)
    axes.grid(visible=False, axis="x")
    if measure == "worst_of_bound":
        axes.axhline(1.0, color="#444444", linewidth=1.0, zorder=4)


def figure(plot, table, inputs):
    rows = [row for row in table["rows"] if row["inputs"] == inputs]
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    canvas, grid = plot.plt.subplots(len(MEASURES), len(dtypes), figsize=(9, 6), sharey="row", squeeze=False)
    for axes_of_measure, (measure, text) in zip(grid, MEASURES.items(), strict=True):
        for axes, dtype in zip(axes_of_measure, dtypes, strict=True):
            draw_panel(axes, [row for row in rows if row["dtype"] == dtype], measure)
            axes.set_title(dtype, loc="left", fontsize=10, color="#222222")
        axes_of_measure[0].set_ylabel(text)
    top = plot.legend_below_title(canvas, TITLES[inputs], *grid[0][0].get_legend_handles_labels())
    canvas.tight_layout(rect=(0, 0, 1, top / canvas.get_figheight()))
    return canvas


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="what strobe verify --json wrote")
    parser.add_argument("--inputs", default="outliers", help="normal or outliers (default outliers)")
    parser.add_argument("--out", type=Path, default=Path("accuracy.svg"), help=".svg, .png or .pdf")
    arguments = parser.parse_args()

    import plot  # needs matplotlib, which --record does without

    plot.plt.rcParams.update(plot.APPEARANCE)
    table = json.loads(arguments.json.read_text(encoding="utf-8"))
    plot.save(figure(plot, table, arguments.inputs), arguments.out)


if __name__ == "__main__":
    main()
