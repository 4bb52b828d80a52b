// SPDX-License-Identifier: Apache-2.0
// O and LSE, from a warpgroup's registers to global memory.
#pragma once

#include "kernels/score/modifiers/sink.h"
#include "kernels/sm90/forward/store/lse.h"
#include "kernels/sm90/forward/store/pipe.h"
#include "kernels/sm90/forward/tile/rows.h"
#include "kernels/sm90/forward/tile/softmax.h"
#include "kernels/sm90/forward/tile/split.h"
#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

/// O in float32, straight to global memory: four lanes write 32 bytes of a row.
template <Config C>
__device__ __forceinline__ void store_floats(const Params& params, const TileWork& work, int warpgroup,
                                             const float (&o)[C.head_dim_v / 2], const float (&factor)[kRowsPerThread],
                                             const bool (&sees)[kRowsPerThread]) {
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = work.row_of(warpgroup) + warpgroup_row(r);
    if (row >= work.q.owned * C.packed_heads) {
      continue;
    }
    float* const to = output_row<C>(params, work, row) + fragment_column();
#pragma unroll
    for (int j = 0; j < C.head_dim_v / 8; ++j) {
      if (8 * j >= params.head_dim_v) {
        break;
      }
      const float* const pair = &o[4 * j + 2 * r];
      const float2 both = {pair[0] * factor[r], pair[1] * factor[r]};
      *reinterpret_cast<float2*>(to + 8 * j) = sees[r] ? both : float2{0.0F, 0.0F};
    }
  }
}

/// Divides by the row's sum and stores. A row without a visible key gives O = 0 and as LSE the sink, or -inf; rows that
/// are owned and not used give O = 0 and LSE = -inf. False if this thread of a masked variant stored a value that is
/// not finite. Of a tile that this CTA shares with others, its part is stored, undivided.
template <Config C>
__device__ __forceinline__ bool store_tile(const Params& params, OutputPipe<C>& pipe, const TileWork& work,
                                           int warpgroup, const float (&o)[C.head_dim_v / 2], Softmax<C>& softmax) {
  const int warp_row = work.row_of(warpgroup) + warp_of_warpgroup() * kRowsPerWarp;
  float factor[kRowsPerThread];
  bool sees[kRowsPerThread];
  bool part_is_finite = true;
  bool is_part = false;
  if constexpr (kSplits<C>) {
    is_part = work.tile.part.slot >= 0;
    store_sharers<C>(params, pipe.split(), work, warpgroup);
  }
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = work.row_of(warpgroup) + warpgroup_row(r);
    const bool exists = row < work.q.used * C.packed_heads;
    const bool owned = row < work.q.owned * C.packed_heads;
    sees[r] = exists && softmax.sum[r] != 0.0F;
    factor[r] = 1.0F;
    if constexpr (C.rule.max_logits) {
      if (exists) {
        store_max_logit<C>(params, work, row, softmax.top[r]);
      }
    }
    if constexpr (C.rule.sink) {
      const bool joins = exists && joins_sink<C>(work.tile.part);
      factor[r] =
          softmax.join(r, joins ? score::sink_log2<C.rule>(params.score, head_of<C>(work, row)) : kMinusInfinity);
    }
    if constexpr (kSplits<C>) {
      if (is_part) {
        if (exists) {
          part_is_finite &=
              store_part_row<C>(pipe.split(), work, warpgroup, r, o, factor[r], softmax.max_log2[r], softmax.sum[r]);
        }
        continue;
      }
    }
    if constexpr (C.rule.normalized) {
      factor[r] *= ptx::rcp_approx(softmax.sum[r]);
    }
    if constexpr (C.rule.dropout) {
      factor[r] *= params.score.dropout.keep_factor;
    }
    if (threadIdx.x % 4 == 0 && owned) {
      store_lse<C>(params, work, row, exists ? softmax.lse(r) : kMinusInfinity);
    }
  }
  if (kSplits<C> && is_part) {
    return part_is_finite;
  }
  if constexpr (C.float_output) {
    store_floats<C>(params, work, warpgroup, o, factor, sees);
    return true;
  }
  return pipe.store(params, work, warp_row, o, factor, sees);
}

}  // namespace strobe::sm90::forward
