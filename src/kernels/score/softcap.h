// SPDX-License-Identifier: Apache-2.0
// Softcap: cap tanh(score / cap), from exponentials and reciprocals.
#pragma once

#include "kernels/ptx/arithmetic.h"
#include "kernels/score/params.h"
#include "kernels/score/rule.h"

namespace strobe::score {

// Where softcap's exponential passes 2^60 tanh is 1, and what is computed of two of them stays finite.
constexpr float kSoftcapMostExponent = 60.0F;

/// The exponential of softcap's tanh(x) = 1 - 2 / (e^2x + 1). Not a number stays so.
__device__ __forceinline__ float softcap_exponential(const ScoreParams& params, float score) {
  return ptx::ex2_approx(ptx::min_nan(score * params.softcap_exponent, kSoftcapMostExponent));
}

/// Softcap, of which the factor `softcap` itself is part of scale_log2. Its absolute error is near 1e-7, where
/// tanh.approx has 5e-4.
__device__ __forceinline__ float softcapped(const ScoreRule& rule, const ScoreParams& params, float score) {
  return rule.softcap ? __fmaf_rn(-2.0F, ptx::rcp_approx(softcap_exponential(params, score) + 1.0F), 1.0F) : score;
}

template <ScoreRule R>
__device__ __forceinline__ float softcapped(const ScoreParams& params, float score) {
  return softcapped(R, params, score);
}

/// Two scores of one row, of which one that is not a number spoils the other: they share a reciprocal, as 1 / a = b /
/// (a b), since special functions are what softcap waits for.
template <ScoreRule R>
__device__ __forceinline__ void softcap_two(const ScoreParams& params, float& x, float& y) {
  const float a = __fmaf_rn(softcap_exponential(params, x), -0.5F, -0.5F);  // so that tanh = 1 + 1 / a
  const float b = __fmaf_rn(softcap_exponential(params, y), -0.5F, -0.5F);
  const float reciprocal = ptx::rcp_approx(a * b);
  x = __fmaf_rn(reciprocal, b, 1.0F);
  y = __fmaf_rn(reciprocal, a, 1.0F);
}

/// Whether nothing comes between softcap and softmax where all keys are visible, so that the two share a multiply-add:
/// with a = -(e^2x + 1) / 2 the exponent scale_log2 tanh(x) - m is scale_log2 / a + (scale_log2 - m).
constexpr bool caps_in_softmax(const ScoreRule& rule) {
  return rule.softcap && !rule.alibi && !rule.bias && !rule.max_logits && !rule.scale_first && !rule.row_invariant;
}

/// The exponent of a score of such a rule.
template <ScoreRule R>
__device__ __forceinline__ float capped_exponent(const ScoreParams& params, float score) {
  return __fmul_rz(softcapped<R>(params, score), params.scale_log2);
}

/// What a score within reach is multiplied with to be an exponent.
template <int count>
__device__ __forceinline__ float capped_slope(const SoftcapTerms<count>& polynomial, float score) {
  const float square = score * score;
  float slope = polynomial.terms[count - 1];
#pragma unroll
  for (int i = count - 2; i >= 0; --i) {
    slope = __fmaf_rn(slope, square, polynomial.terms[i]);
  }
  return slope;
}

/// Two scores of one row, as exponents relative to what `offset` is scale_log2 less. Neither is so large that its
/// exponential must be limited.
__device__ __forceinline__ void capped_exponents(const ScoreParams& params, float& x, float& y, float offset) {
  const float half = params.softcap_half;
  const float a = __fmaf_rn(ptx::ex2_approx(x * params.softcap_exponent), half, half);  // over scale_log2
  const float b = __fmaf_rn(ptx::ex2_approx(y * params.softcap_exponent), half, half);
  const float reciprocal = ptx::rcp_approx(a * b);
  x = __fmaf_rn(reciprocal, b, offset);
  y = __fmaf_rn(reciprocal, a, offset);
}

}  // namespace strobe::score
