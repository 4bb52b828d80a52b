// SPDX-License-Identifier: Apache-2.0
// Rows whose output is not finite, once more: see score/exact_row.h. A warp that saw such a value walks over its tiles
// again, when it has no other work left.
#pragma once

#include "kernels/score/exact_row.h"
#include "kernels/sequence/format_rows.h"
#include "kernels/sequence/stored_rows.h"
#include "kernels/sm90/forward/tile/rows.h"
#include "kernels/sm90/forward/tile/split.h"

namespace strobe::sm90::forward {

template <Config C>
__device__ __forceinline__ score::ExactRow exact_row(const Params& params, const TileWork& work, int row) {
  const int sequence = work.tile.sequence;
  const int head_kv = params.by_heads_per_kv.quotient(work.tile.head);
  const int q_batch = params.sequences.cu_seqlens_q != nullptr ? 0 : sequence;
  const int k_batch = params.sequences.cu_seqlens_k != nullptr || kInCache<C> ? 0 : sequence;
  const auto query = [&](const Rows& rows) {
    return rows.row(q_batch, work.q.start + row / C.packed_heads, head_of<C>(work, row));
  };
  return {.q = query(params.q),
          .qv = C.rule.query_values ? query(params.qv) : nullptr,
          .k = params.k.row(k_batch, work.k.start, head_kv),
          .v = params.v.row(k_batch, work.k.start, head_kv),
          .k_stride = params.k.row_stride,
          .v_stride = params.v.row_stride,
          .head_dim = params.head_dim - first_own_column(C, params),
          .head_dim_v = params.head_dim_v,
          .keys = keys_of<C>(params, work, row),
          .sequence_keys = work.k.used,
          .batch = sequence,
          .head = head_of<C>(work, row),
          .query = row / C.packed_heads,
          .head_in_batch = head_in_batch<C>(params, work, row),
          .first = sequence::first_positions<C.rule>(params, sequence),
          .center = center_of<tiling(C)>(work, row),
          .tree = score::tree_row<C.rule>(params.tree, work, sequence, row / C.packed_heads),
          .head_kv = head_kv,
          .queries = work.q.used,
          .captures = score::captures_pointer<C.rule>(params)};
}

/// Where a tile's rows of K and V lie.
template <Config C>
__device__ __forceinline__ auto row_places(const Params& params, const TileWork& work) {
  if constexpr (C.keys == KeySource::rows_in_format) {
    return sequence::FormatRows<C.format, C.rule.element>(params.cache, params.format, work.tile.sequence,
                                                          work.k.start);
  } else if constexpr (kInCache<C>) {
    return cached_rows<C>(params, work);
  } else {
    return score::ElementRows<C.rule.element>{};
  }
}

/// What reads them.
template <Config C>
__device__ __forceinline__ auto element_rows(const Params& params, const TileWork& work) {
  const auto places = row_places<C>(params, work);
  if constexpr (converts(C)) {
    return sequence::StoredRows<C.stored, C.rule.element, true, decltype(row_places<C>(params, work))>(
        places, params.eight_bit.k, params.eight_bit.v, work.tile.sequence,
        params.by_heads_per_kv.quotient(work.tile.head));
  } else {
    return places;
  }
}

/// A row of a part, from the part's visible keys alone, if one of its values is not finite.
template <Config C>
__device__ __forceinline__ void repair_part_row(const Params& params, const SplitParams& split, const TileWork& work,
                                                int row) {
  const auto exact_of = [&] {
    score::ExactRow exact = exact_row<C>(params, work, row);
    exact.keys.first = max(exact.keys.first, work.n_begin * C.block_n);
    exact.keys.last = min(exact.keys.last, work.n_end * C.block_n - 1);
    return exact;
  };
  strobe::repair_part_row<C.rule, C.head_dim_v>(params.score, params.blocks,
                                                part_row<C>(split, work, row - work.m_begin), params.head_dim_v,
                                                exact_of, joins_sink<C>(work.tile.part), element_rows<C>(params, work));
}

/// One row, from K and V as they lie in memory.
template <Config C>
__device__ __forceinline__ void recompute(const Params& params, const TileWork& work, int row, unsigned short* stored) {
  score::recompute_row<C.rule, C.head_dim_v>(params.score, params.blocks, exact_row<C>(params, work, row), stored,
                                             element_rows<C>(params, work));
}

/// All of this warp's rows, tile by tile, after it has stored them.
template <Config C>
__device__ __forceinline__ void repair_rows(const Params& params, const ScheduleOf<C>& schedule, int warpgroup) {
  __syncwarp();
  SecondScheduler<tiling(C)> scheduler(params, schedule);
  for (Tile tile; scheduler.next(tile);) {
    const TileWork work = tile_work<C>(params, tile);
    const int first = work.row_of(warpgroup) + warp_of_warpgroup() * kRowsPerWarp;
#pragma unroll 1
    for (int row = first; row < min(first + kRowsPerWarp, work.q.used * C.packed_heads); ++row) {
      if constexpr (kSplits<C>) {
        if (work.tile.part.slot >= 0) {
          repair_part_row<C>(params, schedule.params, work, row);
          continue;
        }
      }
      unsigned short* stored = output_row<C>(params, work, row);
      if (!score::row_is_finite<C.rule.element>(stored, params.head_dim_v)) {
        recompute<C>(params, work, row, stored);
      }
    }
  }
}

}  // namespace strobe::sm90::forward
