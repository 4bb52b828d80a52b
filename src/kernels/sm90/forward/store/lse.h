// SPDX-License-Identifier: Apache-2.0
// What rows leave beside O: LSE, and the largest score of their head.
#pragma once

#include "kernels/score/max_logit.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile/rows.h"
#include "kernels/sm90/forward/tile/softmax.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

template <Config C>
__device__ __forceinline__ void store_lse(const Params& params, const TileWork& work, int row, float value) {
  if (params.lse != nullptr) {
    const int batch = params.sequences.cu_seqlens_q != nullptr ? 0 : work.tile.sequence;
    params.lse[batch * params.lse_batch_stride + head_of<C>(work, row) * params.lse_head_stride + work.q.start +
               row / C.packed_heads] = value;
  }
}

/// The largest scores of a segment's rows, where they are wanted.
template <Config C>
__device__ __forceinline__ void store_max_logits(const Params& params, const TileWork& work, int warpgroup,
                                                 const Softmax<C>& softmax) {
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = work.row_of(warpgroup) + warpgroup_row(r);
    if (row < work.q.used * C.packed_heads) {
      store_max_logit<C>(params, work, row, softmax.top[r]);
    }
  }
}

}  // namespace strobe::sm90::forward
