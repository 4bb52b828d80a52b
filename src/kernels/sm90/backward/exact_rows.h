// SPDX-License-Identifier: Apache-2.0
// Rows of gradients that are not finite, once more: see score/exact_gradients.h.
#pragma once

#include "kernels/score/exact_gradients.h"
#include "kernels/sm90/backward/coordinates.h"
#include "kernels/sm90/backward/visible_blocks.h"
#include "kernels/sm90/ptx/warpgroup.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::backward {

using score::KeySide;
using score::repair_queries;

/// Computes again those of a warpgroup's 64 keys from `first` on whose dK or dV is not finite: 16 each warp.
template <Config C, KeySide side>
__device__ __forceinline__ void repair_keys(const Params& params, const Work& work, int first) {
  constexpr int kColumns = side == KeySide::k ? C.head_dim : C.head_dim_v;
  const int begin = first + warp_of_warpgroup() * kRowsPerWarp;
  score::repair_keys<C.rule, kColumns, side>(params, work, {work.sequence, work.head_kv}, C.block_m, begin,
                                             begin + kRowsPerWarp);
}

/// Before rows are repaired: what the warpgroup's thread 0 stored by TMA is in global memory, for all its threads.
__device__ __forceinline__ void finish_stores(int barrier) {
  if (threadIdx.x % kWarpgroupSize == 0) {
    cptx::cp_async_bulk_wait_group(cptx::n32_t<0>{});
  }
  ptx::bar_sync(barrier, kWarpgroupSize);
}

}  // namespace strobe::sm90::backward
