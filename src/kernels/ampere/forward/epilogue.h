// SPDX-License-Identifier: Apache-2.0
// O and LSE, from a warp's registers to global memory.
#pragma once

#include "kernels/ampere/forward/row_rules.h"
#include "kernels/ampere/forward/smem.h"

namespace strobe::ampere::forward {

__device__ __forceinline__ void store_lse(const Params& params, const TileWork& work, int row, float value) {
  if (params.lse != nullptr) {
    params.lse[q_batch(params, work) * params.lse_batch_stride + work.head * params.lse_head_stride + work.q.start +
               row] = value;
  }
}

/// A row's largest score joins its head's. Floats order as integers do, negative ones the other way round.
template <Config C>
__device__ __forceinline__ void store_max_logit(const Params& params, const TileWork& work, float score) {
  if (score != kMinusInfinity) {
    const float logit = score * score::remaining_scale<C.rule>(params.score) * kLn2;
    float* largest = params.max_logits + work.sequence * params.max_logits_batch_stride + work.head;
    if (__float_as_int(logit) >= 0) {
      atomicMax(reinterpret_cast<int*>(largest), __float_as_int(logit));
    } else {
      atomicMin(reinterpret_cast<unsigned*>(largest), __float_as_uint(logit));
    }
  }
}

/// What the rows of a fragment are multiplied by, 0 for one that saw nothing; and their LSE, which it stores. A row
/// without a visible key gives as LSE the sink, or -inf; rows that are owned and not used give -inf.
template <Config C>
__device__ __forceinline__ void finish_rows(const Params& params, const TileWork& work, int first_row,
                                            Softmax<C>& softmax, float (&factor)[kRowsPerThread],
                                            bool (&sees)[kRowsPerThread]) {
  softmax.finish();
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = first_row + score::fragment_row(r);
    const bool exists = row < work.q.used;
    sees[r] = exists && softmax.sum[r] != 0.0F;
    factor[r] = 1.0F;
    if constexpr (C.rule.max_logits) {
      if (exists) {
        store_max_logit<C>(params, work, softmax.top[r]);
      }
    }
    if constexpr (C.rule.sink) {
      factor[r] = softmax.join(r, exists ? score::sink_log2<C.rule>(params.score, work.head) : kMinusInfinity);
    }
    factor[r] *= ptx::rcp_approx(softmax.sum[r]);
    if constexpr (C.rule.dropout) {
      factor[r] *= params.score.dropout.keep_factor;
    }
    if (threadIdx.x % 4 == 0 && row < work.q.owned) {
      store_lse(params, work, row, exists ? softmax.lse(r) : kMinusInfinity);
    }
  }
}

/// Sixteen rows to their place in the warp's tile: o[4 j + 2 r + c] * factor[r], or 0 where not `sees`. False if this
/// thread of a masked variant had a value that is not finite.
template <Config C>
__device__ __forceinline__ bool stage_rows(unsigned char* tile, int first_row, const float (&o)[C.head_dim_v / 2],
                                           const float (&factor)[kRowsPerThread], const bool (&sees)[kRowsPerThread]) {
  unsigned zero = 0;  // two elements: each becomes NaN if a value is not finite
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const unsigned first = OTile<C>::offset(first_row + score::fragment_row(r), 0) + threadIdx.x % 4 * 4;
#pragma unroll
    for (int j = 0; j < C.head_dim_v / kChunkElements; ++j) {
      const float* pair = &o[4 * j + 2 * r];
      unsigned packed = pack<C.rule.element>(pair[0] * factor[r], pair[1] * factor[r]);
      packed = sees[r] ? packed : 0U;
      if constexpr (is_masked(C.rule)) {
        zero = plus_zero_times<C.rule.element>(zero, packed);
      }
      // Two chunks are a pair; the second one's number differs in the lowest bit.
      const unsigned at = OTile<C>::pair_after(first ^ static_cast<unsigned>(j % 2 * kChunkBytes), j / 2);
      *reinterpret_cast<unsigned*>(tile + at) = packed;
    }
  }
  return (zero & 0x7fff7fffU) == 0;
}

/// The warp's tile to global memory, whole rows at a time.
template <Config C>
__device__ __forceinline__ void store_rows(const Params& params, const TileWork& work, const unsigned char* tile,
                                           int first_row) {
  using Tile = OTile<C>;
  const int chunk = lane_of_warp() % Tile::kChunks;
#pragma unroll
  for (int i = 0; i < C.rows_per_warp; i += kWarpSize / Tile::kChunks) {
    const int row = i + lane_of_warp() / Tile::kChunks;
    if (first_row + row >= work.q.owned) {
      break;
    }
    unsigned short* to = output_row(params, work, first_row + row);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      const int column = (panel * Tile::kChunks + chunk) * kChunkElements;
      if (column < params.head_dim_v) {
        *reinterpret_cast<uint4*>(to + column) =
            *reinterpret_cast<const uint4*>(tile + Tile::offset(row, chunk) + panel * Tile::kPanelBytes);
      }
    }
  }
}

/// Rows of a tile none of which sees a key, by the whole CTA. Rows behind the last sequence may be more than one
/// tile's: hence the stride.
template <Config C>
__device__ __forceinline__ void store_nothing_visible(const Params& params, const TileWork& work) {
  const int chunks = params.head_dim_v / kChunkElements;
  for (int first = work.m_begin; first < work.q.owned; first += params.tiles.m_tiles * block_m(C)) {
    const int rows = min(block_m(C), work.q.owned - first);
    for (int i = threadIdx.x; i < rows * chunks; i += threads_per_block(C)) {
      const int row = first + i / chunks;
      *reinterpret_cast<uint4*>(output_row(params, work, row) + i % chunks * kChunkElements) = make_uint4(0, 0, 0, 0);
      if (i % chunks == 0) {
        store_lse(params, work, row,
                  row < work.q.used ? score::sink_log2<C.rule>(params.score, work.head) / kLog2E : kMinusInfinity);
      }
    }
  }
}

}  // namespace strobe::ampere::forward
