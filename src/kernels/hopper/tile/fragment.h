// SPDX-License-Identifier: Apache-2.0
// The accumulator rows of a thread within its warpgroup's 64.
#pragma once

#include "kernels/hopper/tile/warpgroup.h"
#include "kernels/score/fragment.h"

namespace strobe::hopper {

using score::fragment_column;
using score::kFullWarp;
using score::kRowsPerThread;

__device__ __forceinline__ int warp_of_warpgroup() { return threadIdx.x % kWarpgroupSize / kWarpSize; }

/// Row r of this thread within its warpgroup's 64.
__device__ __forceinline__ int warpgroup_row(int r) {
  return warp_of_warpgroup() * kRowsPerWarp + score::fragment_row(r);
}

}  // namespace strobe::hopper
