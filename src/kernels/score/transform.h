// SPDX-License-Identifier: Apache-2.0
// What becomes of Q K^T before masks and softmax: softcap, ALiBi's slope, and the scale where it must come first.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/fragment.h"
#include "kernels/score/params.h"
#include "kernels/score/rule.h"

namespace strobe::score {

/// Softcap, of which the factor `softcap` itself is part of scale_log2: tanh(x) = 1 - 2 / (e^2x + 1). Its absolute
/// error is near 1e-7, where tanh.approx has 5e-4.
template <ScoreRule R>
__device__ __forceinline__ float softcapped(const ScoreParams& params, float score) {
  if constexpr (R.softcap) {
    return 1.0F - 2.0F * ptx::rcp_approx(ptx::ex2_approx(score * params.softcap_scale * (2.0F * kLog2E)) + 1.0F);
  } else {
    return score;
  }
}

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
  return R.scale_first ? 1.0F : params.scale_log2;
}

/// The scores of one tile, block_n keys wide.
template <ScoreRule R, int block_n>
class Transform {
 public:
  static_assert(!R.alibi || R.scale_first);

  /// `row(r)` is this thread's row r; read where the rule needs it.
  template <typename RowOf>
  __device__ __forceinline__ Transform(const ScoreParams& params, const RowOf& row) : params_(params) {
    if constexpr (R.alibi) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const Row one = row(r);
        center_[r] = one.center - fragment_column();
        slope_[r] = slope_log2(params, one.batch, one.head);
      }
    }
  }

  struct Row {
    int center;  // the key on its diagonal
    int batch, head;
  };

  /// Scores of block n.
  __device__ __forceinline__ void apply(float (&s)[block_n / 2], int n) const {
    float center[kRowsPerThread] = {};
    if constexpr (R.alibi) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        center[r] = static_cast<float>(center_[r] - n * block_n);
      }
    }
    for_each_score(s, [&](float& x, int r, int column) {
      x = softcapped<R>(params_, x);
      if constexpr (R.alibi) {
        const float distance = fabsf(center[r] - static_cast<float>(column));
        x = __fmaf_rn(x, params_.scale_log2, -slope_[r] * distance);
      } else if constexpr (R.scale_first) {
        x *= params_.scale_log2;
      }
    });
  }

 private:
  const ScoreParams& params_;
  int center_[kRowsPerThread];  // less this thread's first column
  float slope_[kRowsPerThread];
};

}  // namespace strobe::score
