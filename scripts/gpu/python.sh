#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel on a machine with a GPU, tests it there, measures the host time of its calls, trains the example and,
# where flash-attn's own test files are given, runs them against the drop-ins. What the wheel is built with
# (docs/dependencies.md) and PyTorch are installed already:
# scripts/gpu/python.sh OUT_FOLDER [PEER_TEST_FILE...]
# TEXT=FILE is what the example learns where there is no bible-kjv.
set -euo pipefail
if (($# < 1)); then
  echo "usage: scripts/gpu/python.sh OUT_FOLDER [PEER_TEST_FILE...]" >&2
  exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
peer_files=()
for file in "${@:2}"; do peer_files+=("$(realpath "$file")"); done
cd "$(dirname "$0")/../.."
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
pip=(python3 -m pip install --quiet --no-deps --no-build-isolation --no-index --target "$site")
"${pip[@]}" --config-settings=cmake.define.STROBE_GPU=ON .
"${pip[@]}" python/flash_attn python/flash_attn_interface
export PYTHONPATH=$site
failed=()
python3 -c 'import strobe; print(strobe._core.__file__, strobe.info())'
python3 bench/gpu/python_host_time.py "$out/host_time.json" || failed+=("host time")
python3 -m pytest -q -s -p no:cacheprovider --junit-xml="$out/tests.xml" scripts/gpu/test_python.py || failed+=(tests)
python3 examples/gpt/train.py --device cuda --steps 300 --context 1024 ${TEXT:+--text "$TEXT"} \
  --plot "$out/losses.svg" || failed+=(example)

# Once as they are, and with gradients from the CPU engine; at once, because most of their time is the reference's.
# Left out is what fills the memory or repeats a backward hundreds of times.
peers() { # LOG OPTION...
  python3 scripts/gpu/peer_tests.py "${@:2}" -- -k 'not race and not determin and not overflow' >"$1" 2>&1 || true
}
for file in "${peer_files[@]}"; do
  log=$out/peers-$(basename "$(dirname "$file")")
  peers "$log-as-they-are.log" "$file" --each 20 --seconds 60 &
  for seed in 1 2 3; do
    peers "$log-$seed.log" "$file" --host-gradients --seed "$seed" --seconds "${PEER_SECONDS:-120}" &
  done
done
wait
for log in "$out"/peers-*.log; do
  [[ -f $log ]] || continue
  echo "$(basename "$log")"
  grep -E '^ +[0-9]+  |passed, ' "$log" || failed+=("$(basename "$log")")
done
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
