# SPDX-License-Identifier: Apache-2.0
"""Draws every plot of the documentation from the committed measurements; with --check lists those that are outdated.

.venv/bin/python scripts/docs/plots.py
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from dark_mode import with_dark_mode

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = "docs/benchmarks"
XEON = f"{BENCHMARKS}/cpu/xeon-amx-grid-16-threads.json"
ZEN5 = f"{BENCHMARKS}/cpu/epyc-zen5-one-thread.json"
# Each plot: the script, the measurements, its options.
PLOTS = {
    f"{BENCHMARKS}/io.svg": ("bench/plot_io.py", f"{BENCHMARKS}/io.json"),
    f"{BENCHMARKS}/accuracy.svg": ("bench/plot_accuracy.py", f"{BENCHMARKS}/accuracy.json"),
    f"{BENCHMARKS}/h200/forward.svg": (
        "bench/plot.py", f"{BENCHMARKS}/h200/forward.json", "--pass", "forward", "--dtype", "bfloat16"),
    f"{BENCHMARKS}/h100/attention.svg": (
        "bench/plot.py", f"{BENCHMARKS}/h100/with-flash-attention-3.json", "--pass", "forward", "backward"),
    f"{BENCHMARKS}/h200/attention.svg": (
        "bench/plot.py", f"{BENCHMARKS}/h200/with-flash-attention-3.json", "--pass", "forward", "backward"),
    f"{BENCHMARKS}/h200/gpt_losses.svg": ("examples/gpt/plot_losses.py", f"{BENCHMARKS}/h200/gpt_losses.json"),
    f"{BENCHMARKS}/cpu/gpt_relative_bias.svg": (
        "examples/gpt/plot_losses.py",
        f"{BENCHMARKS}/cpu/gpt_relative_bias.json",
    ),
    f"{BENCHMARKS}/h200/gpt_speed.svg": ("examples/gpt/plot_speed.py", f"{BENCHMARKS}/h200/gpt_speed.json"),
    f"{BENCHMARKS}/h200/traffic.svg": ("bench/plot_traffic.py", f"{BENCHMARKS}/h200/traffic.json"),
    f"{BENCHMARKS}/cpu/forward.svg": (
        "bench/plot.py", f"{BENCHMARKS}/cpu/epyc-avx2-pytorch.json", "--pass", "forward", "--dtype", "float32"),
    f"{BENCHMARKS}/cpu/xeon-forward.svg": (
        "bench/plot.py", XEON, "--pass", "forward", "--dtype", "bfloat16"),
    f"{BENCHMARKS}/cpu/xeon-backward.svg": (
        "bench/plot.py", XEON, "--pass", "backward", "--dtype", "bfloat16"),
    f"{BENCHMARKS}/cpu/epyc-zen5.svg": (
        "bench/plot.py", ZEN5, "--pass", "forward", "backward", "--dtype", "bfloat16"),
    f"{BENCHMARKS}/cpu/epyc-zen5-decode.svg": (
        "bench/plot_decode.py", f"{BENCHMARKS}/cpu/epyc-zen5-decode.json"),
    f"{BENCHMARKS}/context_parallel.svg": (
        "bench/plot_context_parallel.py", f"{BENCHMARKS}/context_parallel.json"),
    f"{BENCHMARKS}/h100/two_gpus.svg": ("bench/plot_timeline.py", f"{BENCHMARKS}/h100/two_gpus.json"),
}  # fmt: skip
# Of several GPUs, what scripts/gpu/context_parallel.sh wrote on each machine: ranks_4.json is of four.
PLOTS |= {
    path.with_suffix(".svg").relative_to(ROOT).as_posix(): ("bench/plot_ranks.py", path.relative_to(ROOT).as_posix())
    for path in sorted((ROOT / BENCHMARKS).glob("*/ranks_*.json"))
}


def draw(plot, out):
    script, *arguments = PLOTS[plot]
    subprocess.run([sys.executable, script, *arguments, "--out", out], cwd=ROOT, check=True)
    out.write_text(with_dark_mode(out.read_text(encoding="utf-8")), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    check = parser.parse_args().check
    stale = []
    with tempfile.TemporaryDirectory() as folder:
        for plot in PLOTS:
            drawn = Path(folder, "plot.svg")
            draw(plot, drawn if check else ROOT / plot)
            if check and drawn.read_bytes() != (ROOT / plot).read_bytes():
                stale.append(plot)
    if stale:
        sys.exit(f"these plots differ from their measurements; run scripts/docs/plots.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()
