// SPDX-License-Identifier: Apache-2.0
// Where ldmatrix and stmatrix find a lane's row in a panel.
#pragma once

#include "kernels/sm90/tile/fragment.h"
#include "kernels/sm90/tile/panel.h"

namespace strobe::sm90 {

/// Where this lane's row of a 16 x 16 block of a warp's rows lies in a panel, for ldmatrix and stmatrix.
__device__ __forceinline__ int lane_offset(int column) {
  const int lane = threadIdx.x % kWarpSize;
  return piece_offset(warp_of_warpgroup() * kRowsPerWarp + lane % kRowsPerWarp, column / 8 + lane / kRowsPerWarp);
}

}  // namespace strobe::sm90
