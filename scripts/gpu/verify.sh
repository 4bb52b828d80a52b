#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies the kernels of both families on a machine with a Hopper GPU and PyTorch, and prints a short table.
#
#   STROBE_LIBRARY=build/release/lib/libstrobe.so STROBE_TESTS=build/release/bin scripts/gpu/verify.sh [CONFIGURATIONS]
#
# Random configurations of tests/gpu, forward and backward, against float64 in as many processes as there are cores
# (kernels that the library's pack lacks are compiled on first use), the other tests there, the same of the sm80 kernels
# with the tiles of each amount of shared memory that their devices have, the checks of check_forward.py, the GPU
# program of examples/quickstart, compute-sanitizer's four tools, and the mutations of scripts/mutation/run_gpu.py,
# which it builds first unless $STROBE_MUTATION_TESTS names the folder of its programs. $PARTS names what to run of
# "random tests sm80 checks sanitizers mutations", all of it unless set. Logs stay in $LOGS.
set -u
parts=" ${PARTS:-random tests sm80 checks sanitizers mutations} "
tests=$(realpath "${STROBE_TESTS:-build/release/bin}")
[[ -n ${STROBE_MUTATION_TESTS:-} ]] && STROBE_MUTATION_TESTS=$(realpath "$STROBE_MUTATION_TESTS")
cd "$(dirname "$0")" || exit 1
configurations=${1:-3200}
shards=$(nproc)
logs=${LOGS:-$(mktemp -d)}
per_shard=$(((configurations + shards - 1) / shards))
failed=0

wanted() { [[ $parts == *" $1 "* ]]; }

# run_shards NAME COUNT PER_SHARD STRIDE COMMAND...: runs COMMAND in COUNT processes, each with its own seeds, and says how
# it went.
run_shards() {
  local name=$1 count=$2 each=$3 stride=$4 start=$SECONDS bad=0 pids=() i
  shift 4
  for ((i = 0; i < count; ++i)); do
    STROBE_SEEDS=$each STROBE_STRIDE=$stride STROBE_FIRST_SEED=$((32 + i * each * stride)) \
      "$@" "$tests/gpu_random_tests" >"$logs/$name-$i.log" 2>&1 &
    pids+=($!)
  done
  for i in "${!pids[@]}"; do
    if ! wait "${pids[$i]}"; then
      bad=$((bad + 1))
      tail -n 3 "$logs/$name-$i.log"
    fi
  done
  printf '%-6s%-24s%s configurations in %s processes, %s failed, %s s\n' "$( ((bad == 0)) && echo ok || echo FAIL)" "$name" \
    $((count * each)) "$count" "$bad" $((SECONDS - start))
  ((bad == 0))
}

# run_tests NAME FILTER: other tests, shared out among as many processes.
run_tests() {
  local name=$1 filter=$2 start=$SECONDS bad=0 pids=() i
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$tests/gpu_tests" --gtest_brief=1 \
      --gtest_filter="$filter" >"$logs/$name-$i.log" 2>&1 &
    pids+=($!)
  done
  for i in "${!pids[@]}"; do
    if ! wait "${pids[$i]}"; then
      bad=$((bad + 1))
      grep -h '^\[  FAILED' "$logs/$name-$i.log" | sort -u
    fi
  done
  printf '%-6s%-24s%s processes, %s failed, %s s\n' "$( ((bad == 0)) && echo ok || echo FAIL)" "$name" "$shards" \
    "$bad" $((SECONDS - start))
  ((bad == 0))
}

check_random() { GTEST_FILTER='-*/sm80' run_shards random "$shards" "$per_shard" 1 || failed=1; }

check_tests() {
  run_tests tests '-GpuLargeTensors.*:*/sm80' || failed=1
  "$tests/gpu_tests" --gtest_brief=1 --gtest_filter=GpuLargeTensors.* || failed=1  # it takes most of a GPU's memory
}

check_sm80() {
  local kilobytes
  for kilobytes in 227 163 99; do
    STROBE_SHARED_KB=$kilobytes GTEST_FILTER='*/sm80' \
      run_shards "sm80-$kilobytes" "$shards" $(((per_shard + 2) / 3)) 1 || failed=1
  done
  run_tests sm80 '*/sm80' || failed=1
}

check_scripts() {
  python3 ../../tests/gpu/python/check_forward.py --configurations 1 || failed=1
  python3 ../../tests/gpu/python/check_eight_bit.py || failed=1
  python3 ../../tests/gpu/python/check_quantize.py || failed=1
  python3 ../../tests/gpu/python/check_needles.py || failed=1
  python3 ../../tests/gpu/python/check_stored.py || failed=1
  python3 ../../tests/gpu/python/check_pages.py || failed=1
  python3 ../../tests/gpu/python/check_append.py || failed=1
  "$tests/quickstart_gpu" || failed=1
}

# 100 configurations of debug kernels, four of each kernel: waits that trap instead of hanging, shared memory that starts
# as NaN, and mbarriers at which each lane arrives for itself. Of a lane that arrives for its warp behind a __syncwarp(),
# racecheck knows only that lane's accesses: ptxas makes the __syncwarp() of a converged warp a NOP.
check_sanitizers() {
  local tool tools=()
  export STROBE_DEBUG_KERNELS=1 STROBE_LONGEST=500 GTEST_FILTER='-*/sm80'
  run_shards poisoned 20 5 8 || failed=1
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck synccheck; do
      run_shards "$tool" 4 25 8 compute-sanitizer --tool "$tool" --error-exitcode 9 &
      tools+=($!)
    done
    for tool in "${tools[@]}"; do wait "$tool" || failed=1; done
    GTEST_FILTER='*/sm80' run_shards racecheck-sm80 4 6 8 compute-sanitizer --tool racecheck --error-exitcode 9 || failed=1
    # Page tables and lengths are read on the device: numbers of no page, and rows that no key uses. Rows of a large LSE
    # are found by a kernel that random configurations leave at once.
    for tool in memcheck racecheck initcheck synccheck; do
      STROBE_SEEDS=20 compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests/gpu_tests" --gtest_brief=1 \
        --gtest_filter='GpuCache.PagesBehindPadding/sm90:GpuCache.Entries/sm90:GpuCache.PagesThatDoNotExistAreZeros/sm90:GpuAppend.*/sm90:GpuLargeScores.ASink*' \
        >"$logs/pages-$tool.log" 2>&1 || { echo "FAIL  pages under $tool"; failed=1; }
    done
  fi
  unset STROBE_DEBUG_KERNELS STROBE_LONGEST GTEST_FILTER
}

check_mutations() {
  local mutations=(python3 ../mutation/run_gpu.py)
  [[ -n ${STROBE_MUTATION_TESTS:-} ]] && mutations+=(--programs "$STROBE_MUTATION_TESTS")
  "${mutations[@]}" >"$logs/mutations.log" || failed=1
  grep -v '^  \(noticed\|passed\)' "$logs/mutations.log"
}

wanted random && check_random
wanted tests && check_tests
wanted sm80 && check_sm80
wanted checks && check_scripts
wanted sanitizers && check_sanitizers
wanted mutations && check_mutations
exit $failed
