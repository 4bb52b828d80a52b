#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel on a machine with a GPU, tests it there, measures the host time of its calls, trains the example and,
# where flash-attn's own test files are given, runs them against the drop-ins. What the wheel is built with
# (docs/dependencies.md) and PyTorch are installed already:
# scripts/gpu/python.sh OUT_FOLDER [PEER_TEST_FILE...]
# SITE=FOLDER holds the packages, built elsewhere. TEXT=FILE is what the example learns where there is no bible-kjv.
# STROBE_TESTS=build/release/bin runs the commands of the program `strobe` on the GPU, too.
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
site=${SITE:-}
if [[ -z $site ]]; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  pip=(python3 -m pip install --quiet --no-deps --no-build-isolation --no-index --target "$site")
  "${pip[@]}" --config-settings=cmake.define.STROBE_GPU=ON .
  "${pip[@]}" python/flash_attn python/flash_attn_interface
fi
export PYTHONPATH=$site
failed=()
python3 -c 'import strobe; print(strobe._core.__file__, strobe.info())'
python3 bench/gpu/python_host_time.py "$out/host_time.json" || failed+=("host time")
test=(python3 -m pytest -q -s -p no:cacheprovider tests/gpu/python)
if python3 -c 'import xdist' 2>/dev/null; then # in many processes: kernels that the pack lacks are compiled on first use
  "${test[@]}" -n "$(nproc)" --junit-xml="$out/tests.xml" || failed+=(tests)
  "${test[@]}" -k device_memory || failed+=("device memory")
else
  "${test[@]}" --junit-xml="$out/tests.xml" || failed+=(tests)
fi
# The drop-ins' caches by random options, and a captured decode step whose lengths change on the device.
STROBE_TEST_DEVICE=cuda python3 -m pytest -q -p no:cacheprovider tests/python/test_kvcache.py -k random_calls || failed+=(caches)
python3 tests/gpu/python/check_replay.py || failed+=(replays)
python3 tests/gpu/python/check_float32.py "$out/float32.json" || failed+=(float32)
if [[ -n ${STROBE_TESTS:-} ]]; then
  "$STROBE_TESTS/cli_tests" --gtest_brief=1 --gtest_filter='OnAGpu.*' || failed+=(program)
fi
python3 examples/gpt/train.py --device cuda --steps 300 --context 1024 ${TEXT:+--text "$TEXT"} \
  --json "$out/gpt_losses.json" --plot "$out/gpt_losses.svg" || failed+=(example)

# Several samples of each file at once, because most of their time is the reference's. Left out are the tests for races,
# which allocate half of the device's memory, and the one that reads the schemas of raw operators.
for file in "${peer_files[@]}"; do
  log=$out/peers-$(basename "$(dirname "$file")")
  for seed in 1 2 3 4; do
    python3 scripts/gpu/peer_tests.py "$file" --seed "$seed" --seconds "${PEER_SECONDS:-120}" \
      -- -k 'not race_condition and not bw_compatibility' >"$log-$seed.log" 2>&1 &
  done
done
wait
for log in "$out"/peers-*.log; do
  [[ -f $log ]] || continue
  echo "$(basename "$log")"
  grep -E '^ +[0-9]+  |passed, ' "$log" || failed+=("$(basename "$log")")
  grep -q ' 0 failed' "$log" || failed+=("$(basename "$log")")
done
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
