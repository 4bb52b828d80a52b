// SPDX-License-Identifier: Apache-2.0
// Softcap: a scaled score s becomes cap tanh(s / cap). Kernels compute the tanh, from exponentials and reciprocals; the
// factor `cap` is part of what makes exponents of it (ScoreParams::scale_log2).
//
// Forward: softcapped(), of two scores softcap_two(), with their softmax in one softcap_step.h. Derivative:
// softcap_derivative(). The parameters are plain C++ without std headers, shared by host and device.
#pragma once

#include "kernels/score/rule.h"

#ifdef __CUDACC_RTC__
#include "kernels/ptx/arithmetic.h"
#endif

namespace strobe {

/// Of scores s up to `reach` either side of 0 the capped exponent is s (terms[0] + terms[1] s^2 + ...), nearly.
template <int count>
struct SoftcapTerms {
  float terms[count];
  float reach;
};

/// Softcap rules. Scores are products of Q and K here, to which no scale has been applied.
struct SoftcapParams {
  float exponent;        // 2 log2(e) scale / cap: e^(2 x), of which tanh(x) is made, is 2^(score exponent)
  float half;            // -1/2 / scale_log2
  SoftcapTerms<3> near;  // a quarter of the cap
  SoftcapTerms<5> far;   // three quarters
};

/// Registers of a thread that a forward keeps for it.
inline constexpr int kSoftcapRegisters = 8;

namespace score {

/// Whether nothing comes between softcap and softmax where all keys are visible, so that the two may share a
/// multiply-add: with a = -(e^2x + 1) / 2 the exponent scale_log2 tanh(x) - m is scale_log2 / a + (scale_log2 - m).
constexpr bool may_cap_in_softmax(const ScoreRule& rule) {
  return rule.softcap && !rule.alibi && !rule.bias && !rule.max_logits && !rule.scale_first && !rule.row_invariant &&
         !has_text(rule) && !has_block_bits(rule) && rule.normalized;
}

#ifdef __CUDACC_RTC__

// Where softcap's exponential passes 2^60 tanh is 1, and what is computed of two of them stays finite.
constexpr float kSoftcapMostExponent = 60.0F;

/// The exponential of softcap's tanh(x) = 1 - 2 / (e^2x + 1). Not a number stays so.
__device__ __forceinline__ float softcap_exponential(const SoftcapParams& params, float score) {
  return ptx::ex2_approx(ptx::min_nan(score * params.exponent, kSoftcapMostExponent));
}

/// tanh(score scale / cap). Its absolute error is near 1e-7, where tanh.approx has 5e-4.
__device__ __forceinline__ float softcapped(const SoftcapParams& params, float score) {
  return __fmaf_rn(-2.0F, ptx::rcp_approx(softcap_exponential(params, score) + 1.0F), 1.0F);
}

/// Two scores of one row, of which one that is not a number spoils the other: they share a reciprocal, as 1 / a = b /
/// (a b), since special functions are what softcap waits for.
__device__ __forceinline__ void softcap_two(const SoftcapParams& params, float& x, float& y) {
  const float a = __fmaf_rn(softcap_exponential(params, x), -0.5F, -0.5F);  // so that tanh = 1 + 1 / a
  const float b = __fmaf_rn(softcap_exponential(params, y), -0.5F, -0.5F);
  const float reciprocal = ptx::rcp_approx(a * b);
  x = __fmaf_rn(reciprocal, b, 1.0F);
  y = __fmaf_rn(reciprocal, a, 1.0F);
}

/// What a score's gradient is multiplied with, given its tanh.
__device__ __forceinline__ float softcap_derivative(float tanh) { return __fmaf_rn(-tanh, tanh, 1.0F); }

#endif

}  // namespace score
}  // namespace strobe
