// SPDX-License-Identifier: Apache-2.0
// A tile's rows whose output is not finite, once more: see score/exact_row.h.
#pragma once

#include "kernels/ampere/forward/tile_work.h"
#include "kernels/score/exact_row.h"

namespace strobe::ampere::forward {

template <Config C>
__device__ __forceinline__ score::ExactRow exact_row(const Params& params, const TileWork& work, int row) {
  const int k_head = kv_head(params, work);
  return {.q = params.q.row(q_batch(params, work), work.q.start + row, work.head),
          .k = params.k.row(k_batch(params, work), work.k.start, k_head),
          .v = params.v.row(k_batch(params, work), work.k.start, k_head),
          .k_stride = params.k.row_stride,
          .v_stride = params.v.row_stride,
          .head_dim = params.head_dim,
          .head_dim_v = params.head_dim_v,
          .keys = keys_of<C>(params, work, row),
          .batch = work.sequence,
          .head = work.head,
          .query = row,
          .head_in_batch = head_in_batch(params, work),
          .center = center_of(work, row),
          .tree = score::tree_row<C.rule>(params.tree, work, work.sequence, row)};
}

/// Of this warp's rows, after it has stored them.
template <Config C>
__device__ __forceinline__ void repair_rows(const Params& params, const TileWork& work, int first_row) {
  __syncwarp();
#pragma unroll 1
  for (int row = first_row; row < min(first_row + C.rows_per_warp, work.q.used); ++row) {
    unsigned short* stored = output_row(params, work, row);
    if (!score::row_is_finite<C.rule.element>(stored, params.head_dim_v)) {
      score::recompute_row<C.rule, C.head_dim_v>(params.score, params.blocks, exact_row<C>(params, work, row), stored);
    }
  }
}

}  // namespace strobe::ampere::forward
