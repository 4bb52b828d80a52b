#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the demo on a terminal of 100 columns and draws its output as docs/figures/demo.svg. Nothing else should run
# meanwhile: the output contains measurements.
set -euo pipefail
cd "$(dirname "$0")/.."
capture=$(mktemp)
trap 'rm -f "$capture"' EXIT
script --quiet --return --command "stty cols 100; scripts/demo.sh" "$capture"
python3 scripts/draw_terminal.py "$ make demo" "$capture" docs/figures/demo.svg
