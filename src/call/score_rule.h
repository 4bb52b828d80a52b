// SPDX-License-Identifier: Apache-2.0
// What happens to a score between the two products: s = softcap(scale * q.k), before ALiBi, bias and masks. Engines
// compute exponentials to base 2, which hardware does best, so scale and log2(e) are one factor.
#pragma once

#include <algorithm>
#include <limits>
#include <numbers>

#include "call/problem.h"

namespace strobe {

/// exp(x) = 2^(kLog2E * x).
inline constexpr float kLog2E = std::numbers::log2e_v<float>;

/// From a product q.k to its score, scale * q.k, or under softcap scale * tanh(softcap_scale * q.k); with scale_log2 in
/// the place of scale to the score's base-2 exponent.
struct ScoreScale {
  float scale_log2 = 0.0F;     // scale * log2(e), within float32
  float softcap_scale = 0.0F;  // capped: the call's scale / softcap
  float scale = 0.0F;          // the call's; capped: softcap
  bool capped = false;
};

/// A softcap above this caps no score that float32 holds by more than its rounding, or overflows times log2(e).
inline constexpr double kLargestSoftcap = 0x1p127;

inline ScoreScale score_scale(const AttentionProblem& problem) {
  const bool capped = problem.softcap > 0.0F;
  const double softcap = std::min<double>(problem.softcap, kLargestSoftcap);
  const double scale = capped ? softcap : problem.scale;
  constexpr double kLargest = std::numeric_limits<float>::max();
  return {.scale_log2 = static_cast<float>(std::clamp(scale * std::numbers::log2e, -kLargest, kLargest)),
          .softcap_scale = capped ? static_cast<float>(problem.scale / softcap) : 0.0F,
          .scale = static_cast<float>(scale),
          .capped = capped};
}

}  // namespace strobe
