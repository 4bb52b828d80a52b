// SPDX-License-Identifier: Apache-2.0
// A tile's rows whose output is not finite, once more: see score/exact_row.h.
#pragma once

#include "kernels/scheduler/part.h"
#include "kernels/score/exact_row.h"
#include "kernels/sequence/cache.h"
#include "kernels/sequence/stored_rows.h"
#include "kernels/sm80/forward/epilogue.h"

namespace strobe::sm80::forward {

template <Config C>
__device__ __forceinline__ score::ExactRow exact_row(const Params& params, const TileWork& work, int row) {
  const int head_kv = head_kv_of(params, work);
  const int batch = C.pages || C.entries ? 0 : k_batch(params, work);
  return {.q = query_row<C>(params.q, params, work, row),
          .qv = C.rule.query_values ? query_row<C>(params.qv, params, work, row) : nullptr,
          .k = params.k.row(batch, work.k.start, head_kv),
          .v = params.v.row(batch, work.k.start, head_kv),
          .k_stride = params.k.row_stride,
          .v_stride = params.v.row_stride,
          .head_dim = params.head_dim - first_own_column(C, params),
          .head_dim_v = params.head_dim_v,
          .keys = keys_of<C>(params, work, row),
          .sequence_keys = work.k.used,
          .batch = work.tile.sequence,
          .head = head_of<C>(work, row),
          .query = row / C.packed_heads,
          .head_in_batch = head_in_batch<C>(params, work, row),
          .first = sequence::first_positions<C.rule>(params, work.tile.sequence),
          .center = center_of<C>(work, row),
          .tree = score::tree_row<C.rule>(params.tree, work, work.tile.sequence, row / C.packed_heads),
          .head_kv = head_kv,
          .queries = work.q.used,
          .captures = score::captures_pointer<C.rule>(params)};
}

/// Where a tile's rows of K and V lie.
template <Config C>
__device__ __forceinline__ auto row_places(const Params& params, const TileWork& work) {
  if constexpr (C.pages || C.entries) {
    return sequence::CachedRows<C.rule.element, C.pages, C.entries>(
        params.cache, params.k, params.v, work.tile.sequence, head_kv_of(params, work), work.k.start);
  } else {
    return score::ElementRows<C.rule.element>{};
  }
}

/// What reads them.
template <Config C>
__device__ __forceinline__ auto element_rows(const Params& params, const TileWork& work) {
  const auto places = row_places<C>(params, work);
  if constexpr (is_stored(C)) {
    return sequence::StoredRows<C.stored, C.rule.element, converts(C), decltype(row_places<C>(params, work))>(
        places, params.k_scales, params.v_scales, work.tile.sequence, head_kv_of(params, work));
  } else {
    return places;
  }
}

/// LSE and largest score of a row that was computed again.
template <Config C>
__device__ __forceinline__ void store_row_numbers(const Params& params, const TileWork& work, int row, float lse,
                                                  float top_log2) {
  if (lane_of_warp() != 0) {
    return;
  }
  store_lse<C>(params, work, row, lse);
  if constexpr (C.rule.max_logits) {
    store_max_logit<C>(params, work, row, top_log2 / score::remaining_scale<C.rule>(params.score));
  }
}

/// Computes again those of this warp's rows that are not finite, after it has stored them.
template <Config C>
__device__ __forceinline__ void repair_rows(const Params& params, const TileWork& work, int first_row) {
  __syncwarp();
#pragma unroll 1
  for (int row = first_row; row < min(first_row + stored_rows(C), used_rows<C>(work)); ++row) {
    unsigned short* stored = query_row<C>(params.o, params, work, row);
    if (!score::row_is_finite<C.rule.element>(stored, params.head_dim_v)) {
      const score::RecomputedRow result = score::recompute_row<C.rule, C.head_dim_v>(
          params.score, params.blocks, exact_row<C>(params, work, row), stored, element_rows<C>(params, work));
      if constexpr (C.rule.element == Element::fp32) {  // else scores that are not finite are what they should be
        store_row_numbers<C>(params, work, row, result.lse, result.top_log2);
      }
    }
  }
}

/// Computes again those of this warp's rows that are not finite in this CTA's part of a tile.
template <Config C>
__device__ __forceinline__ void repair_part(const Params& params, const TileWork& work, int first_row) {
  __syncwarp();
#pragma unroll 1
  for (int row = first_row; row < min(first_row + stored_rows(C), used_rows<C>(work)); ++row) {
    const auto exact_of = [&] {
      score::ExactRow exact = exact_row<C>(params, work, row);
      exact.keys.first = max(exact.keys.first, work.n_begin * C.block_n);
      exact.keys.last = min(exact.keys.last, work.n_end * C.block_n - 1);
      return exact;
    };
    const PartRow stored = part_row<C.head_dim_v>(params.split, work.tile.part.slot, row - work.m_begin);
    repair_part_row<C.rule, C.head_dim_v>(params.score, params.blocks, stored, params.head_dim_v, exact_of,
                                          sink_joins_part<C>(work), element_rows<C>(params, work));
  }
}

}  // namespace strobe::sm80::forward
