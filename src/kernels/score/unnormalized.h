// SPDX-License-Identifier: Apache-2.0
// Scores that are the probabilities: what OnlineSoftmax is to a softmax, for rules without one. Nothing is subtracted,
// rescaled or divided; a row's maximum counts as 0 and its sum as 1, so that parts of a row's keys weigh the same.
//
// Source: Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention" (2024).
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/fragment.h"
#include "kernels/score/rule.h"

namespace strobe::score {

/// The probability that a score is: none of -inf, which hidden keys have.
__device__ __forceinline__ float probability_of_score(float score) { return score == kMinusInfinity ? 0.0F : score; }

template <ScoreRule R, int block_n>
struct Unnormalized {
  static_assert(!R.normalized && !R.sink && !R.max_logits);

  float max_log2[kRowsPerThread] = {};
  float sum[kRowsPerThread] = {1.0F, 1.0F};
  float correction[kRowsPerThread] = {1.0F, 1.0F};

  /// Turns scores into probabilities, then calls `on_arrival`. Nothing is ever to be rescaled.
  template <typename OnArrival>
  __device__ __forceinline__ static bool step(float (&s)[block_n / 2], float, const OnArrival& on_arrival) {
#pragma unroll
    for (float& x : s) {
      x = probability_of_score(x);
    }
    on_arrival();
    return false;
  }

  /// Those of the sixteen keys of the operand `step`.
  template <int lift = 0>
  __device__ __forceinline__ static void exponentiate(float (&s)[block_n / 2], int step, float) {
    static_assert(lift == 0);
#pragma unroll
    for (int i = 8 * step; i < 8 * step + 8; ++i) {
      s[i] = probability_of_score(s[i]);
    }
  }

  __device__ __forceinline__ static bool sums_are_negative() { return false; }
  __device__ __forceinline__ static void finish() {}
  __device__ __forceinline__ static float lse(int) { return 0.0F; }
};

}  // namespace strobe::score
