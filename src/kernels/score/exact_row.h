// SPDX-License-Identifier: Apache-2.0
// A row whose output is not finite, once more and from its visible keys alone.
//
// P V multiplies masked keys' values by 0, and 0 * NaN is NaN: a masked key would reach the result through a V that is
// not finite. Copies zero what lies outside a sequence; keys that only some rows of a tile see cannot be zeroed. So a
// warp that stored a value that is not finite recomputes such rows with plain loops. That is slow and rare.
#pragma once

#include "kernels/score/apply.h"
#include "kernels/score/lse.h"
#include "kernels/score/modifiers/bias.h"
#include "kernels/score/modifiers/block_bits.h"
#include "kernels/score/modifiers/dropout.h"
#include "kernels/score/modifiers/sink.h"
#include "kernels/score/modifiers/tree_mask.h"
#include "kernels/score/unnormalized.h"
#include "kernels/sequence/visible_keys.h"

namespace strobe::score {

/// One row of Q, and the keys and values of its head. Strides in elements.
struct ExactRow {
  const unsigned short* q;
  const unsigned short* qv;  // rules with query_values
  const unsigned short* k;   // of key 0
  const unsigned short* v;
  long long k_stride, v_stride;
  int head_dim, head_dim_v;  // of Q and K alone

  sequence::KeyRange keys;  // that it sees
  int sequence_keys;        // how many its sequence has
  int batch, head, query;
  int head_in_batch;               // the head, counted through the batch
  sequence::FirstPositions first;  // of its sequence
  int center;                      // the key on the diagonal
  TreeRow tree = {};               // tree-mask rules
  int head_kv = 0;                 // rules with texts
  int queries = 0;                 // likewise, that its sequence has
  const expression::Captures* captures = nullptr;

  __device__ __forceinline__ expression::Position position(int key) const {
    return {.q = first.q + query,
            .k = first.k + key,
            .head = head,
            .head_kv = head_kv,
            .batch = batch,
            .q_len = queries,
            .k_len = sequence_keys};
  }
};

/// What is added to the score of a visible key.
template <ScoreRule R>
__device__ __forceinline__ float bias_of(const BiasParams& bias, const ExactRow& row, int key) {
  if constexpr (R.bias) {
    return bias_at<R>(bias, bias.row(row.batch, row.head, row.query) + key);
  }
  return 0.0F;
}

/// Rows of K and V as float32.
template <Element element>
struct ElementRows {
  struct Row {
    const unsigned short* elements;
    __device__ __forceinline__ float operator[](int column) const { return element_at<element>(elements, column); }
  };
  __device__ __forceinline__ Row key(const ExactRow& row, int key) const { return {row.k + key * row.k_stride}; }
  __device__ __forceinline__ Row value(const ExactRow& row, int key) const { return {row.v + key * row.v_stride}; }
};

/// A row's maximum in powers of two, its sum of exponentials relative to it, and P V, of which a lane holds columns
/// lane, lane + 32, ...
template <int head_dim_v>
struct RowSums {
  static constexpr int kColumns = (head_dim_v + kThreadsPerWarp - 1) / kThreadsPerWarp;
  float max_log2 = kMinusInfinity;
  float sum = 0.0F;
  float o[kColumns] = {};

  /// Another key's exponent joins the sum. Returns its exponential, and in `correction` by what P V so far shrinks.
  __device__ __forceinline__ float add(float exponent, float& correction) {
    const float raised = fmaxf(max_log2, exponent);
    const float shift = raised == kMinusInfinity ? 0.0F : raised;
    correction = ptx::ex2_approx(max_log2 - shift);
    const float p = ptx::ex2_approx(exponent - shift);
    max_log2 = raised;
    sum = sum * correction + p;
    return p;
  }

  /// A logit without a value joins the row. Returns by what O shrinks for it.
  __device__ __forceinline__ float join(float logit_log2) {
    const float raised = fmaxf(max_log2, logit_log2);
    const float shrunk = ptx::ex2_approx(max_log2 - raised);
    sum = sum * shrunk + ptx::ex2_approx(logit_log2 - raised);
    max_log2 = raised;
    return shrunk;
  }
};

/// Computes a row again, by one warp: a row of `head_dim_v` columns as compiled. `rows` reads K and V.
template <ScoreRule R, int head_dim_v, typename KeyRows = ElementRows<R.element>>
__device__ __forceinline__ RowSums<head_dim_v> row_sums(const ScoreParams& params, const BlockMaskParams& blocks,
                                                        const ExactRow& row, const KeyRows& rows = {}) {
  const int lane = threadIdx.x % kThreadsPerWarp;
  const float scale = remaining_scale<R>(params);
  const float slope = R.alibi ? slope_log2(params.alibi, row.batch, row.head) / scale : 0.0F;
  const ProductFactor<R> factor(params, row.sequence_keys);
  const DropoutKey dropout = dropout_key_of(params.dropout);
  RowSums<head_dim_v> sums;
  if constexpr (!R.normalized) {
    sums.max_log2 = 0.0F;
    sums.sum = 1.0F;
  }
#pragma unroll 1
  for (int key = row.keys.first; key <= row.keys.last; ++key) {
    if constexpr (R.block_mask != 0) {
      if (!shows_pair<R>(blocks, row.batch, row.head, row.query, key)) {
        continue;
      }
    }
    if constexpr (R.tree_mask) {
      if (!shows(row.tree, key)) {
        continue;
      }
    }
    if constexpr (R.text.mask) {
      if (!text_shows<R>(*row.captures, row.position(key))) {
        continue;
      }
    }
    const auto k = rows.key(row, key);
    const auto v = rows.value(row, key);
    float score = 0.0F;
    for (int column = lane; column < row.head_dim; column += kThreadsPerWarp) {
      score += element_at<R.element>(row.q, column) * k[column];
    }
    if constexpr (R.query_values) {
      for (int column = lane; column < row.head_dim_v; column += kThreadsPerWarp) {
        score += element_at<R.element>(row.qv, column) * v[column];
      }
    }
    for (int distance = kThreadsPerWarp / 2; distance > 0; distance /= 2) {
      score += __shfl_xor_sync(kFullWarp, score, distance);
    }
    // Rounded before the maximum is subtracted, and towards zero, as OnlineSoftmax's of large scores.
    const float bias = bias_of<R>(params.bias, row, key);
    score = transformed(R, params, factor.times(score), slope, row.center - key, bias);
    if constexpr (R.text.score) {
      score = text_score<R>(*row.captures, row.position(key), score);
    }
    float correction = 1.0F;
    const float p = R.normalized ? sums.add(__fmul_rz(score, scale), correction) : probability_of_score(score);
    float weight = p;
    if constexpr (R.dropout) {
      const unsigned head = head_of_whole(params.dropout, row.batch, row.head_in_batch);
      weight =
          is_dropped(dropout, head, row.first.q + row.query, row.first.k + key) ? 0.0F : p * params.dropout.keep_factor;
    }
#pragma unroll
    for (int i = 0; i < sums.kColumns; ++i) {
      const int column = lane + i * kThreadsPerWarp;
      sums.o[i] = sums.o[i] * correction + (column < row.head_dim_v ? weight * v[column] : 0.0F);
    }
  }
  return sums;
}

/// What a row that was computed again has beside O.
struct RecomputedRow {
  float lse;
  float top_log2;  // its largest exponent, without the sink
};

/// Stores such a row. One that sees nothing but scores of -inf is 0 where the rule's element is float32; of others such
/// rows do not come here.
template <ScoreRule R, int head_dim_v, typename KeyRows = ElementRows<R.element>>
__device__ __forceinline__ RecomputedRow recompute_row(const ScoreParams& params, const BlockMaskParams& blocks,
                                                       const ExactRow& row, unsigned short* destination,
                                                       const KeyRows& rows = {}) {
  RowSums<head_dim_v> sums = row_sums<R, head_dim_v>(params, blocks, row, rows);
  const float top_log2 = sums.max_log2;
  const bool sees = R.element != Element::fp32 || sums.sum != 0.0F;
  const float shrunk = sums.join(sink_log2<R>(params, row.head));
#pragma unroll
  for (int i = 0; i < sums.kColumns; ++i) {
    const int column = static_cast<int>(threadIdx.x % kThreadsPerWarp) + i * kThreadsPerWarp;
    if (column < row.head_dim_v) {
      set_element<R.element>(destination, column, sees ? sums.o[i] * shrunk / sums.sum : 0.0F);
    }
  }
  return {lse_of(sums.max_log2, sums.sum), top_log2};
}

/// Whether all of a row's sums are finite.
__device__ __forceinline__ bool sums_are_finite(const float* row, int columns) {
  float zero = 0.0F;
  for (int column = threadIdx.x % kThreadsPerWarp; column < columns; column += kThreadsPerWarp) {
    zero = __fmaf_rn(row[column], 0.0F, zero);
  }
  return __all_sync(kFullWarp, zero == 0.0F);
}

/// Whether all elements of a stored row are finite: the exponent's bits of one that is not are all ones.
template <Element element>
__device__ __forceinline__ bool row_is_finite(const unsigned short* row, int columns) {
  bool finite = true;
  for (int column = threadIdx.x % kThreadsPerWarp; column < columns; column += kThreadsPerWarp) {
    if constexpr (element == Element::fp32) {
      finite = finite && element_at<element>(row, column) * 0.0F == 0.0F;
    } else {
      constexpr unsigned kExponent = element == Element::bf16 ? 0x7f80U : 0x7c00U;
      finite = finite && (row[column] & kExponent) != kExponent;
    }
  }
  return __all_sync(kFullWarp, finite);
}

}  // namespace strobe::score
