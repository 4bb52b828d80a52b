// SPDX-License-Identifier: Apache-2.0
// What happens to a score between the two products: s = softcap(scale * q.k), before ALiBi, bias and masks. Engines
// compute exponentials to base 2, which hardware does best, so scale and log2(e) are one factor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "call/problem.h"
#include "kernels/math/constants.h"

namespace strobe {

/// From a product q.k to its score, scale * q.k, or under softcap scale * tanh(softcap_scale * q.k); with scale_log2 in
/// the place of scale to the score's base-2 exponent.
struct ScoreScale {
  float scale_log2 = 0.0F;     // scale * log2(e), within float32
  float softcap_scale = 0.0F;  // capped: product_scale() / softcap
  float scale = 0.0F;          // product_scale(); capped: softcap
  bool capped = false;
};

/// A softcap above this caps no score that float32 holds by more than its rounding, or overflows times log2(e).
inline constexpr double kLargestSoftcap = 0x1p127;

/// What products q.k of a sequence that has `keys` keys are multiplied by: the call's scale, with log-length scaling
/// times max(1, log(keys) / log(log_length)).
inline float product_scale(const AttentionProblem& problem, std::int64_t keys) {
  if (problem.log_length == 0 || keys <= problem.log_length) return problem.scale;
  const double factor = std::log(static_cast<double>(keys)) / std::log(static_cast<double>(problem.log_length));
  return static_cast<float>(problem.scale * factor);
}

/// Of sequences that all have as many keys the scale has the factor already.
inline AttentionProblem with_folded_log_length(AttentionProblem problem) {
  if (problem.packed_k || problem.has_seqused_k || problem.has_leftpad_k) return problem;
  problem.scale = product_scale(problem, problem.seqlen_k);
  problem.log_length = 0;
  return problem;
}

inline ScoreScale score_scale(const AttentionProblem& problem, std::int64_t keys) {
  const float product = product_scale(problem, keys);
  const bool capped = problem.softcap > 0.0F;
  const double softcap = std::min<double>(problem.softcap, kLargestSoftcap);
  const double scale = capped ? softcap : product;
  constexpr double kLargest = std::numeric_limits<float>::max();
  return {.scale_log2 = static_cast<float>(std::clamp(scale * std::numbers::log2e, -kLargest, kLargest)),
          .softcap_scale = capped ? static_cast<float>(product / softcap) : 0.0F,
          .scale = static_cast<float>(scale),
          .capped = capped};
}

}  // namespace strobe
