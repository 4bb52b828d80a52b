// SPDX-License-Identifier: Apache-2.0
// Rows whose output is not finite, once more: see score/exact_row.h. A warp that saw such a value walks over its tiles
// again, when it has no other work left.
#pragma once

#include "kernels/hopper/forward/cache_place.h"
#include "kernels/hopper/forward/epilogue.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/forward/part.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/math/stored.h"
#include "kernels/score/exact_row.h"

namespace strobe::hopper::forward {

template <Config C>
__device__ __forceinline__ score::ExactRow exact_row(const Params& params, const TileWork& work, int row) {
  const int sequence = work.tile.sequence;
  const int kv_head = params.by_heads_per_kv.quotient(work.tile.head);
  const int q_batch = params.sequences.cu_seqlens_q != nullptr ? 0 : sequence;
  const int k_batch = params.sequences.cu_seqlens_k != nullptr || kInCache<C> ? 0 : sequence;
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
          .center = center_of<tiling(C)>(work, row),
          .tree = score::tree_row<C.rule>(params.tree, work, sequence, row / C.packed_heads)};
}

/// What reads a tile's rows of K and V of 16-bit elements.
template <Config C>
__device__ __forceinline__ auto element_rows(const Params& params, const TileWork& work) {
  if constexpr (kInCache<C>) {
    return cached_rows<C>(params, work);
  } else {
    return score::ElementRows<C.rule.element>{};
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

/// Rows of K and V stored in 8 bits, of one sequence and head.
template <Config C>
class StoredRows {
 public:
  struct Row {
    const unsigned char* elements;
    float scale;
    __device__ __forceinline__ float operator[](int column) const {
      if (kInCache<C> && elements == nullptr) {
        return 0.0F;
      }
      return converted<C.stored, C.rule.element>(elements[column], scale);
    }
  };

  __device__ __forceinline__ StoredRows(const Params& params, const TileWork& work, const score::ExactRow& row)
      : params_(params),
        work_(work),
        sequence_(work.tile.sequence),
        head_(params.by_heads_per_kv.quotient(work.tile.head)) {
    k_ = bytes_from(params.k, row.k);
    v_ = bytes_from(params.v, row.v);
  }

  __device__ __forceinline__ Row key(const score::ExactRow& row, int key) const {
    return {key_bytes(params_.k, k_ + key * row.k_stride, key), scale(params_.eight_bit.k, key)};
  }
  __device__ __forceinline__ Row value(const score::ExactRow& row, int key) const {
    return {key_bytes(params_.v, v_ + key * row.v_stride, key), scale(params_.eight_bit.v, key)};
  }

 private:
  /// Rows count 16-bit elements.
  __device__ __forceinline__ static const unsigned char* bytes_from(const Rows& rows, const unsigned short* element) {
    return reinterpret_cast<const unsigned char*>(rows.data) + (element - rows.data);
  }
  /// `in_order`: where the row lies in a tensor of sequences.
  __device__ __forceinline__ const unsigned char* key_bytes(const Rows& rows, const unsigned char* in_order,
                                                            int key) const {
    if constexpr (kInCache<C>) {
      const unsigned short* const row = cached_rows<C>(params_, work_).row_of(rows, key);
      return row == nullptr ? nullptr : bytes_from(rows, row);
    }
    return in_order;
  }
  __device__ __forceinline__ float scale(const ScaleParams& scales, int key) const {
    return scales.of(sequence_, head_)[key >> scales.shift];
  }

  const Params& params_;
  const TileWork& work_;
  const int sequence_, head_;
  const unsigned char *k_, *v_;
};

/// One row, from K and V as they lie in memory.
template <Config C>
__device__ __forceinline__ void recompute(const Params& params, const TileWork& work, int row, unsigned short* stored) {
  const score::ExactRow exact = exact_row<C>(params, work, row);
  if constexpr (converts(C)) {
    score::recompute_row<C.rule, C.head_dim_v>(params.score, params.blocks, exact, stored,
                                               StoredRows<C>(params, work, exact));
  } else {
    score::recompute_row<C.rule, C.head_dim_v>(params.score, params.blocks, exact, stored,
                                               element_rows<C>(params, work));
  }
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

}  // namespace strobe::hopper::forward
