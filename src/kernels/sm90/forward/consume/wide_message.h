// SPDX-License-Identifier: Apache-2.0
// What the warpgroups of a wide loop say to each other beside P.
#pragma once

#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/tile/lane_offset.h"

namespace strobe::sm90::forward {

/// Flags of a block of P, of each warp's rows.
constexpr unsigned kFirstOfTile = 1;  // O begins with it
constexpr unsigned kGrew = 2;         // O's rows are multiplied by their corrections before
constexpr unsigned kLastOfTile = 4;   // O is then complete
constexpr unsigned kNoMore = 8;       // there is no P, and no more will come

/// Blocks of P in shared memory, and their messages.
template <Config C>
struct Probabilities {
  static constexpr int kBytes = tile_bytes(kRowsPerWarpgroup, kPanelColumns);
  static_assert(C.block_n == kPanelColumns);

  unsigned char* smem;

  __device__ __forceinline__ unsigned char* block(int stage) const { return smem + smem_plan(C).p + stage * kBytes; }
  __device__ __forceinline__ BlockMessage& message(int stage) const {
    return reinterpret_cast<BlockMessage*>(smem + smem_plan(C).messages)[stage];
  }
};

/// All of a wide loop's warpgroups have stored what they had: whether some of it was not finite.
template <Config C>
__device__ __forceinline__ bool all_stored(bool is_finite) {
  constexpr int kThreads = (C.consumer_warpgroups + C.output_warpgroups) * kWarpgroupSize;
  return !ptx::barrier_red_or(kWideEnd, kThreads, !is_finite);
}

}  // namespace strobe::sm90::forward
