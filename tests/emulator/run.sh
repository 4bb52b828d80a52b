#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program on the emulated GPU: tests/emulator/run.sh build/release build/release/bin/gpu_tests --gtest_filter=...
# Kernels that were compiled are kept in the build's folder emulator/cache.
set -euo pipefail
if (($# < 2)); then
  echo "usage: tests/emulator/run.sh BUILD_FOLDER PROGRAM [ARGUMENT...]" >&2
  exit 2
fi
build=$(cd "$1" && pwd)
shift
folder=$build/emulator
if [[ ! -e $folder/libcuda.so.1 ]]; then
  echo "build it first: cmake --build $build --target emulator" >&2
  exit 1
fi
real=${STROBE_EMULATOR_NVRTC:-$(sed -n 's/^STROBE_NVRTC:[A-Z]*=//p' "$build/CMakeCache.txt")}
if [[ -z $real ]]; then
  real=$(dirname "$build")/cuda/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
fi
export STROBE_EMULATOR_NVRTC=$real
export STROBE_NVRTC=$folder/libnvrtc_emulated.so
export STROBE_CACHE_DIR=${STROBE_EMULATOR_CACHE:-$folder/cache}
export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p -m 700 "$STROBE_CACHE_DIR"
exec "$@"
