#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies the Hopper engine on a machine with such a GPU and PyTorch, and prints a short table.
#
#   STROBE_LIBRARY=build/release/lib/libstrobe.so STROBE_TESTS=build/release/bin scripts/gpu/verify.sh [CONFIGURATIONS]
#
# Random configurations of tests/hopper, forward and backward, against float64 in as many processes as there are cores (kernels that the
# library's pack lacks are compiled on first use), the other tests there, the checks of check_forward.py, the GPU program
# of examples/quickstart, and compute-sanitizer's four tools. Logs stay in $LOGS.
set -u
tests=$(realpath "${STROBE_TESTS:-build/release/bin}")
cd "$(dirname "$0")" || exit 1
configurations=${1:-3200}
shards=$(nproc)
logs=${LOGS:-$(mktemp -d)}
per_shard=$(((configurations + shards - 1) / shards))
failed=0

# run_shards NAME COUNT PER_SHARD STRIDE COMMAND...: runs COMMAND in COUNT processes, each with its own seeds, and says how
# it went.
run_shards() {
  local name=$1 count=$2 each=$3 stride=$4 start=$SECONDS bad=0 pids=() i
  shift 4
  for ((i = 0; i < count; ++i)); do
    STROBE_SEEDS=$each STROBE_STRIDE=$stride STROBE_FIRST_SEED=$((32 + i * each * stride)) \
      "$@" "$tests/hopper_random_tests" >"$logs/$name-$i.log" 2>&1 &
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

run_shards random "$shards" "$per_shard" 1 || failed=1
# Waits that trap instead of hanging, shared memory that starts as NaN.
STROBE_DEBUG_KERNELS=1 run_shards "poisoned" "$shards" 8 32 || failed=1
"$tests/hopper_tests" --gtest_brief=1 || failed=1
python3 check_forward.py --configurations 1 || failed=1
"$tests/quickstart_gpu" || failed=1
if command -v compute-sanitizer >/dev/null; then
  tools=()
  for tool in memcheck racecheck initcheck synccheck; do
    # Every 32nd seed is another kernel. racecheck does not follow what the backward does, and the forward never: a lane
    # that arrives at an mbarrier for its warp, or a bulk copy that does, and reads by other warps after it.
    forward_only=$([[ $tool == racecheck ]] && echo 1 || echo 0)
    STROBE_FORWARD_ONLY=$forward_only run_shards "$tool" 5 20 32 compute-sanitizer --tool "$tool" --error-exitcode 9 &
    tools+=($!)
  done
  for tool in "${tools[@]}"; do wait "$tool" || failed=1; done
fi
exit $failed
