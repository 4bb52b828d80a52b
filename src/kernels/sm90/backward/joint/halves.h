// SPDX-License-Identifier: Apache-2.0
// The joint design's probabilities: they wait for dP as float16, in half the registers.
#pragma once

#include "kernels/sm90/backward/scores.h"
#include "kernels/sm90/backward/variants.h"

namespace strobe::sm90::backward {

/// P = exp2(S - LSE) as float16, of S from which LSE was subtracted where the variant has it in high and low parts;
/// with a softcap or a text P times its derivative, and P as operand `p`. What is dropped gets a negative sign.
template <Config C, typename Bias>
__device__ __forceinline__ void probabilities_in_halves(const ScoreBlock<C>& block, bool masked, bool has_large_rows,
                                                        Scores<C>& s, RowNumbers<C>& lse_log2, Bias& bias,
                                                        Operand<C>& p, Operand<C>& halves) {
  if constexpr (has_hi_lo_lse(C)) {
    difference_probabilities<C>(block, masked, has_large_rows, s);
  } else {
    scale_probabilities<C>(lse_log2);
    probabilities<C>(block, masked, has_large_rows, s, p, lse_log2, bias);
  }
#pragma unroll
  for (int i = 0; i < C.block_m / 4; ++i) {
    halves[i / 4][i % 4] = to_halves<C>(s[2 * i], s[2 * i + 1]);
  }
  if constexpr (C.rule.dropout) {
    static_assert(marks_dropped(C.rule));
    const score::DropoutSlices<C.block_m> slices = draw_dropout<C.block_m>(block, 0);
#pragma unroll
    for (int i = 0; i < C.block_m / 4; ++i) {
      halves[i / 4][i % 4] = score::mark_dropped(halves[i / 4][i % 4], slices, i / 4, i % 4);
    }
    if constexpr (has_slope(C.rule)) {
      drop<C>(p, slices);
    }
  }
}

/// Two probabilities as they are multiplied with dO: those with a sign are dropped.
template <Config C>
__device__ __forceinline__ uint32_t probability_operand(uint32_t half, float2 x) {
  if constexpr (C.rule.dropout) {
    return pack<C.rule.element>(fmaxf(x.x, 0.0F), fmaxf(x.y, 0.0F));
  }
  return C.rule.element == Element::fp16 ? half : pack<C.rule.element>(x.x, x.y);
}

/// P and dS = P (dP - D) as operands. D was subtracted before; under dropout it comes in `d_sum`, times the probability
/// of being kept. With a softcap `p` is there already.
template <Config C>
__device__ __forceinline__ void score_gradients_of_halves(const Operand<C>& halves, const Scores<C>& dp,
                                                          const RowNumbers<C>& d_sum, Operand<C>& p, Operand<C>& ds) {
#pragma unroll
  for (int i = 0; i < C.block_m / 4; ++i) {
    const uint32_t half = halves[i / 4][i % 4];
    float2 x = of_halves<C>(half);
    if constexpr (!has_slope(C.rule)) {
      p[i / 4][i % 4] = probability_operand<C>(half, x);
    }
    if constexpr (C.rule.element == Element::fp16) {
      x = {x.x * kProbabilityScale, x.y * kProbabilityScale};
    }
    float2 gradient;
    if constexpr (C.rule.dropout) {
      const float2 d = row_numbers<C>(d_sum, i / kRowsPerThread);
      gradient = {score::marked_score_gradient(x.x, dp[2 * i], d.x),
                  score::marked_score_gradient(x.y, dp[2 * i + 1], d.y)};
    } else {
      gradient = {x.x * dp[2 * i], x.y * dp[2 * i + 1]};
    }
    ds[i / 4][i % 4] = pack<C.rule.element>(gradient.x, gradient.y);
  }
}

}  // namespace strobe::sm90::backward
