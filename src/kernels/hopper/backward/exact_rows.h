// SPDX-License-Identifier: Apache-2.0
// Rows of gradients that are not finite, once more: see score/exact_gradients.h.
#pragma once

#include "kernels/hopper/backward/coordinates.h"
#include "kernels/hopper/backward/visible_blocks.h"
#include "kernels/hopper/ptx/warpgroup.h"
#include "kernels/hopper/tile/fragment.h"
#include "kernels/score/exact_gradients.h"

namespace strobe::hopper::backward {

using score::KeySide;
using score::repair_queries;

/// Of a warpgroup's 64 keys from `first` on those whose dK or dV is not finite: 16 each warp.
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

}  // namespace strobe::hopper::backward
