// SPDX-License-Identifier: Apache-2.0
// Rows whose output is not finite, once more and from their visible keys alone.
//
// P V multiplies masked keys' values by 0, and 0 * NaN is NaN: a masked key would reach the result through a V that is
// not finite. TMA zeroes what lies outside a sequence; keys that only some rows of a tile see cannot be zeroed. So a
// warp that saw a value that is not finite walks over its tiles again, when it has no other work left, and recomputes
// such rows with plain loops. That is slow and rare.
#pragma once

#include "kernels/hopper/forward/epilogue.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/score/bias.h"
#include "kernels/score/dropout.h"
#include "kernels/score/transform.h"

namespace strobe::hopper::forward {

/// The blocks that a row's block mask shows and hides.
template <Config C>
__device__ __forceinline__ const unsigned char* block_mask_row(const Params& params, const TileWork& work, int row) {
  const BlockMaskParams& blocks = params.blocks;
  return blocks.data + work.tile.sequence * blocks.batch_stride + work.tile.head * blocks.head_stride +
         row / C.rule.block_mask * blocks.row_stride;
}

/// A visible key's part of the exponent of 2 that is not the product's.
template <Config C>
__device__ __forceinline__ float bias_log2(const Params& params, const TileWork& work, int row, int key) {
  const BiasParams& bias = params.score.bias;
  const long long index = work.tile.sequence * bias.batch_stride + head_of<C>(work, row) * bias.head_stride +
                          row / C.packed_heads * bias.row_stride + key;
  return score::bias_at<C.rule>(bias, index) * kLog2E;
}

/// One warp, one row.
template <Config C>
__device__ __forceinline__ void recompute_row(const Params& params, const TileWork& work, int row,
                                              unsigned short* destination) {
  constexpr int kColumns = (C.head_dim_v + kWarpSize - 1) / kWarpSize;  // of this lane: lane, lane + 32, ...
  const int lane = threadIdx.x % kWarpSize;
  const int sequence = work.tile.sequence;
  const int kv_head = params.by_heads_per_kv.quotient(work.tile.head);
  const int q_batch = params.sequences.cu_seqlens_q != nullptr ? 0 : sequence;
  const int k_batch = params.sequences.cu_seqlens_k != nullptr ? 0 : sequence;
  const auto* q = params.q.row(q_batch, work.q.start + row / C.packed_heads, head_of<C>(work, row));
  const int center = center_of<tiling(C)>(work, row);
  const float slope = C.rule.alibi ? score::slope_log2(params.score, sequence, head_of<C>(work, row)) : 0.0F;
  const score::KeyRange keys = keys_of<C>(params, work, row);
  const DropoutKey dropout = score::dropout_key_of(params.score.dropout);
  float max_log2 = kMinusInfinity;
  float sum = 0.0F;
  float o[kColumns] = {};
#pragma unroll 1
  for (int key = keys.first; key <= keys.last; ++key) {
    if constexpr (C.rule.block_mask != 0) {
      if (block_mask_row<C>(params, work, row)[key / C.rule.block_mask] == 0) {
        continue;
      }
    }
    const auto* k = params.k.row(k_batch, work.k.start + key, kv_head);
    const auto* v = params.v.row(k_batch, work.k.start + key, kv_head);
    float score = 0.0F;
    for (int column = lane; column < params.head_dim; column += kWarpSize) {
      score += to_float<C.rule.element>(q[column]) * to_float<C.rule.element>(k[column]);
    }
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      score += __shfl_xor_sync(kFullWarp, score, distance);
    }
    float exponent = score::exponent_of<C.rule>(params.score, score, slope, center - key);
    if constexpr (C.rule.bias) {
      exponent += bias_log2<C>(params, work, row, key);
    }
    const float raised = fmaxf(max_log2, exponent);
    const float shift = raised == kMinusInfinity ? 0.0F : raised;
    const float correction = ptx::ex2_approx(max_log2 - shift);
    const float p = ptx::ex2_approx(exponent - shift);
    max_log2 = raised;
    sum = sum * correction + p;
    float weight = p;
    if constexpr (C.rule.dropout) {
      weight = score::is_dropped(dropout, head_in_batch<C>(params, work, row), row / C.packed_heads, key)
                   ? 0.0F
                   : p * params.score.dropout.keep_factor;
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = lane + i * kWarpSize;
      o[i] = o[i] * correction + (column < params.head_dim_v ? weight * to_float<C.rule.element>(v[column]) : 0.0F);
    }
  }
  const float joined = score::sink_log2<C.rule>(params.score, head_of<C>(work, row));
  const float raised = fmaxf(max_log2, joined);
  const float shrunk = ptx::ex2_approx(max_log2 - raised);
  sum = sum * shrunk + ptx::ex2_approx(joined - raised);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = lane + i * kWarpSize;
    if (column < params.head_dim_v) {
      destination[column] = static_cast<unsigned short>(pack<C.rule.element>(o[i] * shrunk / sum, 0.0F));
    }
  }
}

/// Whether an element of a stored row is not finite: its exponent's bits are all ones.
template <Config C>
__device__ __forceinline__ bool row_is_finite(const Params& params, const unsigned short* row) {
  constexpr unsigned kExponent = C.rule.element == Element::bf16 ? 0x7f80U : 0x7c00U;
  bool finite = true;
  for (int column = threadIdx.x % kWarpSize; column < params.head_dim_v; column += kWarpSize) {
    finite = finite && (row[column] & kExponent) != kExponent;
  }
  return __all_sync(kFullWarp, finite);
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
      if (!row_is_finite<C>(params, stored)) {
        recompute_row<C>(params, work, row, stored);
      }
    }
  }
}

}  // namespace strobe::hopper::forward
