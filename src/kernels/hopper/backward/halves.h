// SPDX-License-Identifier: Apache-2.0
// The joint design's probabilities: they wait for dP as float16, in half the registers.
#pragma once

#include "kernels/hopper/backward/scores.h"

namespace strobe::hopper::backward {

/// What dP - D is multiplied with, as float16: P = exp2(S - LSE), and with a softcap its derivative; there P itself
/// becomes an operand here, else in score_gradients_of_halves().
template <Config C>
__device__ __forceinline__ void probabilities_in_halves(const ScoreBlock<C>& block, bool masked, Scores<C>& s,
                                                        RowNumbers<C>& lse_log2, Operand<C>& halves, Operand<C>& p) {
  if constexpr (splits_lse(C)) {
    if (masked) {
      hide<C>(block, s);
    }
#pragma unroll
    for (int i = 0; i < C.block_m / 2; ++i) {
      s[i] = ptx::ex2_approx(s[i] * block.params.score.scale_log2);
    }
  } else {
#pragma unroll
    for (float2& two : lse_log2) {
      two = {two.x - kHalvesExponent, two.y - kHalvesExponent};
    }
    probabilities<C>(block, masked, s, p, lse_log2);
  }
#pragma unroll
  for (int i = 0; i < C.block_m / 4; ++i) {
    halves[i / 4][i % 4] = ptx::cvt_f16x2(s[2 * i], s[2 * i + 1]);
  }
}

/// dS = P (dP - D) as operand, where D was subtracted before, and P where it is not one yet.
template <Config C>
__device__ __forceinline__ void score_gradients_of_halves(const Operand<C>& halves, const Scores<C>& dp, Operand<C>& p,
                                                          Operand<C>& ds) {
  constexpr bool kHalf = C.rule.element == Element::fp16;
#pragma unroll
  for (int i = 0; i < C.block_m / 4; ++i) {
    const uint32_t half = halves[i / 4][i % 4];
    float2 x = ptx::cvt_f32x2_from_f16x2(half);
    if constexpr (!C.rule.softcap) {
      p[i / 4][i % 4] = kHalf ? half : pack<C.rule.element>(x.x, x.y);
    }
    if constexpr (kHalf) {
      x = {x.x * kFromHalves, x.y * kFromHalves};
    }
    ds[i / 4][i % 4] = pack<C.rule.element>(x.x * dp[2 * i], x.y * dp[2 * i + 1]);
  }
}

}  // namespace strobe::hopper::backward
