// SPDX-License-Identifier: Apache-2.0
// Softcap and softmax in one. Special functions are what a softcapped tile waits for: a score that is near 0 needs none
// for its tanh, and others share what they need with their softmax.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/ptx/arithmetic.h"
#include "kernels/score/fragment.h"
#include "kernels/score/modifiers/softcap.h"
#include "kernels/score/params.h"

namespace strobe::score {

/// What a score within reach is multiplied with to be an exponent.
template <int count>
__device__ __forceinline__ float capped_factor(const SoftcapTerms<count>& polynomial, float score) {
  const float square = score * score;
  float factor = polynomial.terms[count - 1];
#pragma unroll
  for (int i = count - 2; i >= 0; --i) {
    factor = __fmaf_rn(factor, square, polynomial.terms[i]);
  }
  return factor;
}

/// Two scores of one row, as exponents relative to what `offset` is scale_log2 less. Neither is so large that its
/// exponential must be limited.
__device__ __forceinline__ void capped_exponents(const SoftcapParams& params, float& x, float& y, float offset) {
  const float half = params.half;
  const float a = __fmaf_rn(ptx::ex2_approx(x * params.exponent), half, half);  // over scale_log2
  const float b = __fmaf_rn(ptx::ex2_approx(y * params.exponent), half, half);
  const float reciprocal = ptx::rcp_approx(a * b);
  x = __fmaf_rn(reciprocal, b, offset);
  y = __fmaf_rn(reciprocal, a, offset);
}

/// Scores that are all within a polynomial's reach join the sums of `softmax`.
template <typename Softmax, int n, int count>
__device__ __forceinline__ void add_near(Softmax& softmax, float (&s)[n], const SoftcapTerms<count>& polynomial) {
  const float shifts[kRowsPerThread] = {softmax.shift(0), softmax.shift(1)};
  softmax.add_exponentials(s, [&](float x, int r) { return __fmaf_rn(x, capped_factor(polynomial, x), -shifts[r]); });
}

/// The step of an OnlineSoftmax for scores that are all visible and still to be softcapped (may_cap_in_softmax). Where
/// a warp's scores are all near 0, a polynomial makes their exponents.
template <typename Softmax, int n>
__device__ __forceinline__ bool capped_step(Softmax& softmax, float (&s)[n], const ScoreParams& params) {
  const auto exponent_of = [&](float x) { return __fmul_rz(softcapped(params.softcap, x), params.scale_log2); };
  if (params.scale_log2 >= Softmax::kMostFused) {  // a cap that leaves them large
    for_each_score(s, [&](float& x, int, int) { x = exponent_of(x); });
    return softmax.step(s, 1.0F);
  }
  float furthest[kRowsPerThread] = {};
  for_each_score(s, [&](const float& x, int r, int) { furthest[r] = fmaxf(furthest[r], fabsf(x)); });
  bool passes = false;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    // tanh(x) is at most x: near the cap the maximum is looked at more often than it need be.
    const float twice = furthest[r] * params.softcap.exponent;
    passes |= twice * params.scale_log2 > (softmax.max_log2[r] + Softmax::kSlack) * (2.0F * kLog2E);
  }
  const bool grew = __any_sync(kFullWarp, passes);
  if (grew) {
    softmax.raise_maximum_by(s, exponent_of);
  }
  const float reach = fmaxf(furthest[0], furthest[1]);
  if (__all_sync(kFullWarp, reach <= params.softcap.near.reach)) {
    add_near(softmax, s, params.softcap.near);
    return grew;
  }
  if (__all_sync(kFullWarp, reach <= params.softcap.far.reach)) {
    add_near(softmax, s, params.softcap.far);
    return grew;
  }
  if (__any_sync(kFullWarp, reach * params.softcap.exponent > kSoftcapMostExponent)) {
    const float most = kSoftcapMostExponent / params.softcap.exponent;
    for_each_score(s, [&](float& x, int, int) { x = ptx::min_nan(x, most); });
  }
  const float offsets[kRowsPerThread] = {params.scale_log2 - softmax.shift(0), params.scale_log2 - softmax.shift(1)};
  softmax.add_pairs(s, [&](float& x, float& y, int r) { capped_exponents(params.softcap, x, y, offsets[r]); });
  return grew;
}

}  // namespace strobe::score
