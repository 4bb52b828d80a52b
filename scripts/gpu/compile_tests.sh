#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the kernels that tests on a GPU take, without a GPU, into FOLDER/kernels, so that their time on one is not a
# compiler's: there STROBE_CACHE_DIR=FOLDER, on a machine whose NVRTC has the same version as this one.
# scripts/gpu/compile_tests.sh FOLDER [FILTER [PROGRAM]]
# FILTER is GoogleTest's, PROGRAM gpu_tests or gpu_random_tests. The tests run on a driver that runs no kernel, and look
# at no result; STROBE_NVRTC is that of CUDA 13 which the build fetched. JOBS is how many compilers run at once.
set -euo pipefail
if (($# < 1 || $# > 3)); then
  echo "usage: scripts/gpu/compile_tests.sh FOLDER [FILTER [PROGRAM]]" >&2
  exit 2
fi
mkdir -p -m 700 "$1"
folder=$(cd "$1" && pwd)
filter=${2:-*} program=${3:-gpu_tests}
cd "$(dirname "$0")/../.."
jobs=${JOBS:-$(nproc)}
cmake --build --preset release --parallel "$jobs" --target emulator "$program" >/dev/null

export STROBE_EMULATOR_IDLE=1 STROBE_COMPILE_ONLY=1 STROBE_CACHE_DIR=$folder
export STROBE_NVRTC=${STROBE_NVRTC:-$PWD/build/cuda/nvidia/cu13/lib/libnvrtc.so.13}
export LD_LIBRARY_PATH=$PWD/build/release/emulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export GTEST_TOTAL_SHARDS=$jobs
for ((shard = 0; shard < jobs; ++shard)); do
  # A test that compares numbers of its own may fail: nothing ran.
  GTEST_SHARD_INDEX=$shard "build/release/bin/$program" --gtest_filter="$filter" --gtest_brief=1 >/dev/null 2>&1 || true &
done
wait
ls "$folder/kernels" | wc -l | sed 's/$/ kernels/'
du -sh "$folder/kernels" | cut -f1
