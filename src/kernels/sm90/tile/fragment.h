// SPDX-License-Identifier: Apache-2.0
// The accumulator rows of a thread within its warpgroup's 64.
#pragma once

#include "kernels/score/fragment.h"
#include "kernels/sm90/tile/warpgroup.h"

namespace strobe::sm90 {

using score::fragment_column;
using score::kFullWarp;
using score::kRowsPerThread;

__device__ __forceinline__ int warp_of_warpgroup() { return threadIdx.x % kWarpgroupSize / kWarpSize; }

/// Row r of this thread within its warpgroup's 64.
__device__ __forceinline__ int warpgroup_row(int r) {
  return warp_of_warpgroup() * kRowsPerWarp + score::fragment_row(r);
}

}  // namespace strobe::sm90
