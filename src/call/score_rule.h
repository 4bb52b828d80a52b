// SPDX-License-Identifier: Apache-2.0
// What happens to a score between the two products: s = softcap(scale * q.k), before ALiBi, bias and masks. Engines
// compute exponentials to base 2, which hardware does best, so scale and log2(e) are one factor.
#pragma once

#include <numbers>

#include "call/problem.h"

namespace strobe {

/// exp(x) = 2^(kLog2E * x).
inline constexpr float kLog2E = std::numbers::log2e_v<float>;

/// From a product q.k to its base-2 exponent: scale_log2 * q.k, or under softcap scale_log2 * tanh(softcap_scale *
/// q.k).
struct ScoreScale {
  float scale_log2 = 0.0F;     // scale * log2(e); capped: softcap * log2(e)
  float softcap_scale = 0.0F;  // capped: scale / softcap
  bool capped = false;
};

inline ScoreScale score_scale(const AttentionProblem& problem) {
  const bool capped = problem.softcap > 0.0F;
  const double scale = problem.scale;
  const double softcap = problem.softcap;
  return {.scale_log2 = static_cast<float>((capped ? softcap : scale) * std::numbers::log2e),
          .softcap_scale = capped ? static_cast<float>(scale / softcap) : 0.0F,
          .capped = capped};
}

}  // namespace strobe
