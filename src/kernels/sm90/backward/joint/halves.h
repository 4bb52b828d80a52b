// SPDX-License-Identifier: Apache-2.0
// The joint design's probabilities: they wait for dP as float16, in half the registers.
#pragma once

#include "kernels/sm90/backward/scores.h"

namespace strobe::sm90::backward {

/// P = exp2(S - LSE) as float16, of S from which LSE was subtracted where the variant has it in high and low parts.
template <Config C>
__device__ __forceinline__ void probabilities_in_halves(const ScoreBlock<C>& block, bool masked, bool has_large_rows,
                                                        Scores<C>& s, RowNumbers<C>& lse_log2, Operand<C>& halves) {
  if constexpr (has_hi_lo_lse(C)) {
    difference_probabilities<C>(block, masked, has_large_rows, s);
  } else {
    scale_probabilities<C>(lse_log2);
    StepBias<C> none;  // the joint design takes no bias
    apply_factor<C>(block, s);
    plain_probabilities<C>(block, masked, has_large_rows, s, lse_log2, none);
  }
#pragma unroll
  for (int i = 0; i < C.block_m / 4; ++i) {
    halves[i / 4][i % 4] = ptx::cvt_f16x2(s[2 * i], s[2 * i + 1]);
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

}  // namespace strobe::sm90::backward
