// SPDX-License-Identifier: Apache-2.0
// The joint design's probabilities: they wait for dP as float16, in half the registers.
#pragma once

#include "kernels/hopper/backward/scores.h"

namespace strobe::hopper::backward {

/// P = exp2(S - LSE) as float16, of S from which LSE was subtracted where the variant splits it.
template <Config C>
__device__ __forceinline__ void probabilities_in_halves(const ScoreBlock<C>& block, bool masked, Scores<C>& s,
                                                        RowNumbers<C>& lse_log2, Operand<C>& halves) {
  if constexpr (splits_lse(C)) {
    difference_probabilities<C>(block, masked, s);
  } else {
    scale_probabilities<C>(lse_log2);
    plain_probabilities<C>(block, masked, s, lse_log2, {});
  }
#pragma unroll
  for (int i = 0; i < C.block_m / 4; ++i) {
    halves[i / 4][i % 4] = ptx::cvt_f16x2(s[2 * i], s[2 * i + 1]);
  }
}

/// Under dropout: sets the signs of dropped probabilities.
template <Config C>
__device__ __forceinline__ void drop_halves(const ScoreBlock<C>& block, Operand<C>& halves) {
  const score::DropoutSlices<C.block_m> slices = draw_dropout<C.block_m>(block, 0);
#pragma unroll
  for (int i = 0; i < C.block_m / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      halves[i][j] = mark_dropped(block.params.score, halves[i][j], slices, i, j);
    }
  }
}

/// P and dS as operands under dropout, of P with its sign, of some queries from `first` on. `rows`: D of the step's
/// queries.
template <Config C, int queries>
__device__ __forceinline__ void score_gradients_of_dropped(const DropoutParams& params, const Operand<C>& halves,
                                                           const Scores<C>& dp, const unsigned char* rows, int first,
                                                           Operand<C>& p, Operand<C>& ds) {
  const auto* d_sum = reinterpret_cast<const float2*>(rows) + thread_of_warpgroup() % 4;
#pragma unroll
  for (int j = first / 8; j < (first + queries) / 8; ++j) {
    const float2 two = d_sum[4 * j];  // few registers are left: RowNumbers would take more
    const float2 d = {two.x * params.keep_probability, two.y * params.keep_probability};
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int i = 2 * j + r;
      const uint32_t half = halves[i / 4][i % 4];
      float2 x = ptx::cvt_f32x2_from_f16x2(half);
      if constexpr (C.rule.element == Element::fp16) {
        p[i / 4][i % 4] = ptx::max_nan_f16x2(half, 0U);
        x = {x.x * kProbabilityScale, x.y * kProbabilityScale};
      } else {
        p[i / 4][i % 4] = ptx::cvt_relu_bf16x2(x.x, x.y);
      }
      ds[i / 4][i % 4] = pack<C.rule.element>(dropped_score_gradient(x.x, dp[2 * i], d.x),
                                              dropped_score_gradient(x.y, dp[2 * i + 1], d.y));
    }
  }
}

/// P and dS = P (dP - D) as operands, where D was subtracted before.
template <Config C>
__device__ __forceinline__ void score_gradients_of_halves(const Operand<C>& halves, const Scores<C>& dp, Operand<C>& p,
                                                          Operand<C>& ds) {
#pragma unroll
  for (int i = 0; i < C.block_m / 4; ++i) {
    const uint32_t half = halves[i / 4][i % 4];
    float2 x = ptx::cvt_f32x2_from_f16x2(half);
    if constexpr (C.rule.element == Element::fp16) {
      p[i / 4][i % 4] = half;
      x = {x.x * kProbabilityScale, x.y * kProbabilityScale};
    } else {
      p[i / 4][i % 4] = pack<C.rule.element>(x.x, x.y);
    }
    ds[i / 4][i % 4] = pack<C.rule.element>(x.x * dp[2 * i], x.y * dp[2 * i + 1]);
  }
}

}  // namespace strobe::hopper::backward
