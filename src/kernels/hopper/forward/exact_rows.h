// SPDX-License-Identifier: Apache-2.0
// Rows whose output is not finite, once more: see score/exact_row.h. A warp that saw such a value walks over its tiles
// again, when it has no other work left.
#pragma once

#include "kernels/hopper/forward/epilogue.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/score/exact_row.h"

namespace strobe::hopper::forward {

template <Config C>
__device__ __forceinline__ score::ExactRow exact_row(const Params& params, const TileWork& work, int row) {
  const int sequence = work.tile.sequence;
  const int kv_head = params.by_heads_per_kv.quotient(work.tile.head);
  const int q_batch = params.sequences.cu_seqlens_q != nullptr ? 0 : sequence;
  const int k_batch = params.sequences.cu_seqlens_k != nullptr ? 0 : sequence;
  return {.q = params.q.row(q_batch, work.q.start + row / C.packed_heads, head_of<C>(work, row)),
          .k = params.k.row(k_batch, work.k.start, kv_head),
          .v = params.v.row(k_batch, work.k.start, kv_head),
          .k_stride = params.k.row_stride,
          .v_stride = params.v.row_stride,
          .head_dim = params.head_dim,
          .head_dim_v = params.head_dim_v,
          .keys = keys_of<C>(params, work, row),
          .batch = sequence,
          .head = head_of<C>(work, row),
          .query = row / C.packed_heads,
          .head_in_batch = head_in_batch<C>(params, work, row),
          .center = center_of<tiling(C)>(work, row)};
}

/// All of this warp's rows, tile by tile, after it has stored them.
template <Config C>
__device__ __forceinline__ void repair_rows(const Params& params, const ScheduleOf<C>& schedule, int warpgroup) {
  __syncwarp();
  Scheduler<C> scheduler(params.tiles, params.sequences, schedule);
  for (Tile tile; scheduler.next(tile);) {
    const TileWork work = tile_work<C>(params, tile);
    const int first = work.row_of(warpgroup) + warp_of_warpgroup() * kRowsPerWarp;
#pragma unroll 1
    for (int row = first; row < min(first + kRowsPerWarp, work.q.used * C.packed_heads); ++row) {
      unsigned short* stored = output_row<C>(params, work, row);
      if (!score::row_is_finite<C.rule.element>(stored, params.head_dim_v)) {
        score::recompute_row<C.rule, C.head_dim_v>(params.score, params.blocks, exact_row<C>(params, work, row),
                                                   stored);
      }
    }
  }
}

}  // namespace strobe::hopper::forward
