#!/usr/bin/env bash
# Builds the wheel on a machine with a GPU, tests it there and measures the host time of its calls; what the wheel is
# built with (docs/dependencies.md) and PyTorch are installed already: scripts/gpu/python.sh OUT_FOLDER
set -euo pipefail
if (($# != 1)); then
  echo "usage: scripts/gpu/python.sh OUT_FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
pip=(python3 -m pip install --quiet --no-deps --no-build-isolation --no-index --target "$site")
"${pip[@]}" --config-settings=cmake.define.STROBE_GPU=ON .
"${pip[@]}" python/flash_attn python/flash_attn_interface
export PYTHONPATH=$site
python3 -c 'import strobe; print(strobe.info())'
python3 scripts/gpu/bench_python.py "$out/host_time.json"
python3 -m pytest -q -s -p no:cacheprovider --junit-xml="$out/tests.xml" scripts/gpu/test_python.py
