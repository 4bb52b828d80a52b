// SPDX-License-Identifier: Apache-2.0
// What becomes of Q K^T before masks and softmax: softcap, bias, ALiBi's slope, and the scale where it must come first.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/bias.h"
#include "kernels/score/fragment.h"
#include "kernels/score/params.h"
#include "kernels/score/rule.h"
#include "kernels/score/softcap.h"

namespace strobe::score {

/// The slope of a query head, for exponents of 2.
__device__ __forceinline__ float slope_log2(const ScoreParams& params, int batch, int head) {
  return params.alibi_slopes[batch * params.alibi_batch_stride + head] * kLog2E;
}

/// The logit that joins the sum of a query head's rows, for exponents of 2; -inf without a sink.
template <ScoreRule R>
__device__ __forceinline__ float sink_log2(const ScoreParams& params, int head) {
  return R.sink ? params.sink[head] * kLog2E : kMinusInfinity;
}

/// A single score as exponent of 2. `distance`: from the key on the query's diagonal.
template <ScoreRule R>
__device__ __forceinline__ float exponent_of(const ScoreParams& params, float score, float slope, int distance) {
  const float exponent = softcapped<R>(params, score) * params.scale_log2;
  return R.alibi ? exponent - slope * fabsf(static_cast<float>(distance)) : exponent;
}

/// What scores are still to be multiplied with, to be exponents of 2, when Transform is done with them.
template <ScoreRule R>
__device__ __forceinline__ float remaining_scale(const ScoreParams& params) {
  return R.bias ? kLog2E : R.scale_first ? 1.0F : params.scale_log2;
}

/// The scores of one tile, block_n keys wide: softcap, scale where it must come first, bias and ALiBi. The second row
/// of a thread is `query_step` queries after its first.
template <ScoreRule R, int block_n, int query_step>
class Transform {
 public:
  struct Row {
    int center;  // the key on its diagonal
    int batch, head;
    int query;  // one that exists
  };

  /// `row(r)` is this thread's row r, `keys` how many its bias has; read where the rule needs them.
  template <typename RowOf>
  __device__ __forceinline__ Transform(const ScoreParams& params, int keys, const RowOf& row)
      : params_(params), bias_(params.bias, keys, [&](int r) {
          const Row one = row(r);
          return one.batch * params.bias.batch_stride + one.head * params.bias.head_stride +
                 one.query * params.bias.row_stride;
        }) {
    if constexpr (R.alibi) {
      center_ = row(0).center - fragment_column();
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const Row one = row(r);
        slope_[r] = slope_log2(params, one.batch, one.head) / remaining_scale<R>(params);
      }
    }
  }

  /// What block n's scores need from global memory: to be fetched long before apply() wants it.
  __device__ __forceinline__ BiasTile<R, block_n> fetch(int n) const { return bias_.template fetch<block_n>(n); }

  /// Scores of block n. Where `all_visible`, one that is not a number may spoil its neighbours in the row.
  template <bool all_visible>
  __device__ __forceinline__ void apply(float (&s)[block_n / 2], int n, const BiasTile<R, block_n>& bias) const {
    const float center = R.alibi ? static_cast<float>(center_ - n * block_n) : 0.0F;
#pragma unroll
    for (int i = 0; i < block_n / 2; i += 2) {
      const int r = i / 2 % kRowsPerThread;
      const int column = i / 4 * 8;
      softcap<all_visible>(s[i], s[i + 1]);
      const float2 terms = bias.pair(i / 2);
      s[i] = add(s[i], terms.x, r, center - static_cast<float>(column - r * query_step));
      s[i + 1] = add(s[i + 1], terms.y, r, center - static_cast<float>(column + 1 - r * query_step));
    }
  }

 private:
  template <bool all_visible>
  __device__ __forceinline__ void softcap(float& x, float& y) const {
    if constexpr (R.softcap && all_visible && !R.row_invariant) {
      softcap_two<R>(params_, x, y);
    } else {
      x = softcapped<R>(params_, x);
      y = softcapped<R>(params_, y);
    }
  }

  __device__ __forceinline__ float add(float score, float bias, int r, float distance) const {
    if constexpr (R.bias) {
      score = __fmaf_rn(score, params_.scale, bias);
    } else if constexpr (R.scale_first) {
      score = __fmul_rn(score, params_.scale_log2);
    }
    return R.alibi ? __fmaf_rn(-slope_[r], fabsf(distance), score) : score;
  }

  const ScoreParams& params_;
  BiasRows<R> bias_;
  int center_;  // of the first row, less this thread's first column
  float slope_[kRowsPerThread];
};

}  // namespace strobe::score
