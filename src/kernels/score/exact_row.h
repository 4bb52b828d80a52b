// SPDX-License-Identifier: Apache-2.0
// A row whose output is not finite, once more and from its visible keys alone.
//
// P V multiplies masked keys' values by 0, and 0 * NaN is NaN: a masked key would reach the result through a V that is
// not finite. Copies zero what lies outside a sequence; keys that only some rows of a tile see cannot be zeroed. So a
// warp that stored a value that is not finite recomputes such rows with plain loops. That is slow and rare.
#pragma once

#include "kernels/score/bias.h"
#include "kernels/score/dropout.h"
#include "kernels/score/transform.h"
#include "kernels/score/visible_keys.h"

namespace strobe::score {

/// One row of Q, and the keys and values of its head. Strides in elements.
struct ExactRow {
  const unsigned short* q;
  const unsigned short* k;  // of key 0
  const unsigned short* v;
  long long k_stride, v_stride;
  int head_dim, head_dim_v;

  KeyRange keys;
  int batch, head, query;
  int head_in_batch;  // the head, counted through the batch
  int center;         // the key on the diagonal
};

/// A visible key's part of the exponent of 2 that is not the product's.
template <ScoreRule R>
__device__ __forceinline__ float bias_log2(const BiasParams& bias, const ExactRow& row, int key) {
  const long long index =
      row.batch * bias.batch_stride + row.head * bias.head_stride + row.query * bias.row_stride + key;
  return bias_at<R>(bias, index) * kLog2E;
}

/// Whether a row's block mask shows a key.
template <ScoreRule R>
__device__ __forceinline__ bool block_is_shown(const BlockMaskParams& blocks, const ExactRow& row, int key) {
  return blocks.data[row.batch * blocks.batch_stride + row.head * blocks.head_stride +
                     row.query / R.block_mask * blocks.row_stride + key / R.block_mask] != 0;
}

/// One warp, one row of `head_dim_v` columns as compiled.
template <ScoreRule R, int head_dim_v>
__device__ __forceinline__ void recompute_row(const ScoreParams& params, const BlockMaskParams& blocks,
                                              const ExactRow& row, unsigned short* destination) {
  constexpr int kColumns = (head_dim_v + kThreadsPerWarp - 1) / kThreadsPerWarp;  // of this lane: lane, lane + 32, ...
  const int lane = threadIdx.x % kThreadsPerWarp;
  const float slope = R.alibi ? slope_log2(params, row.batch, row.head) : 0.0F;
  const DropoutKey dropout = dropout_key_of(params.dropout);
  float max_log2 = kMinusInfinity;
  float sum = 0.0F;
  float o[kColumns] = {};
#pragma unroll 1
  for (int key = row.keys.first; key <= row.keys.last; ++key) {
    if constexpr (R.block_mask != 0) {
      if (!block_is_shown<R>(blocks, row, key)) {
        continue;
      }
    }
    const auto* k = row.k + key * row.k_stride;
    const auto* v = row.v + key * row.v_stride;
    float score = 0.0F;
    for (int column = lane; column < row.head_dim; column += kThreadsPerWarp) {
      score += to_float<R.element>(row.q[column]) * to_float<R.element>(k[column]);
    }
    for (int distance = kThreadsPerWarp / 2; distance > 0; distance /= 2) {
      score += __shfl_xor_sync(kFullWarp, score, distance);
    }
    float exponent = exponent_of<R>(params, score, slope, row.center - key);
    if constexpr (R.bias) {
      exponent += bias_log2<R>(params.bias, row, key);
    }
    const float raised = fmaxf(max_log2, exponent);
    const float shift = raised == kMinusInfinity ? 0.0F : raised;
    const float correction = ptx::ex2_approx(max_log2 - shift);
    const float p = ptx::ex2_approx(exponent - shift);
    max_log2 = raised;
    sum = sum * correction + p;
    float weight = p;
    if constexpr (R.dropout) {
      weight = is_dropped(dropout, row.head_in_batch, row.query, key) ? 0.0F : p * params.dropout.keep_factor;
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = lane + i * kThreadsPerWarp;
      o[i] = o[i] * correction + (column < row.head_dim_v ? weight * to_float<R.element>(v[column]) : 0.0F);
    }
  }
  const float joined = sink_log2<R>(params, row.head);
  const float raised = fmaxf(max_log2, joined);
  const float shrunk = ptx::ex2_approx(max_log2 - raised);
  sum = sum * shrunk + ptx::ex2_approx(joined - raised);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = lane + i * kThreadsPerWarp;
    if (column < row.head_dim_v) {
      destination[column] = static_cast<unsigned short>(pack<R.element>(o[i] * shrunk / sum, 0.0F));
    }
  }
}

/// Whether all elements of a stored row are finite: the exponent's bits of one that is not are all ones.
template <Element element>
__device__ __forceinline__ bool row_is_finite(const unsigned short* row, int columns) {
  constexpr unsigned kExponent = element == Element::bf16 ? 0x7f80U : 0x7c00U;
  bool finite = true;
  for (int column = threadIdx.x % kThreadsPerWarp; column < columns; column += kThreadsPerWarp) {
    finite = finite && (row[column] & kExponent) != kExponent;
  }
  return __all_sync(kFullWarp, finite);
}

}  // namespace strobe::score
