// SPDX-License-Identifier: Apache-2.0
// What rows leave beside O: LSE, and the largest score of their head.
#pragma once

#include "kernels/score/apply.h"
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

/// A row's largest score joins its head's. Floats order as integers do, negative ones the other way round.
template <Config C>
__device__ __forceinline__ void store_max_logit(const Params& params, const TileWork& work, int row, float score) {
  if (score != kMinusInfinity) {
    const float logit = score * score::remaining_scale<C.rule>(params.score) * kLn2;
    float* largest = params.max_logits + work.tile.sequence * params.max_logits_batch_stride + head_of<C>(work, row);
    if (__float_as_int(logit) >= 0) {
      atomicMax(reinterpret_cast<int*>(largest), __float_as_int(logit));
    } else {
      atomicMin(reinterpret_cast<unsigned*>(largest), __float_as_uint(logit));
    }
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
