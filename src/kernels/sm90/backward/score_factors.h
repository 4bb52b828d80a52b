// SPDX-License-Identifier: Apache-2.0
// What gradients of what scores are made of, a bias and captures, multiply dP - D with.
#pragma once

#include "kernels/score/large_rows.h"
#include "kernels/sm90/backward/scores.h"
#include "kernels/sm90/backward/unnormalized.h"

namespace strobe::sm90::backward {

/// Of rules whose scores are a text's or without a softmax: S becomes P, or 1 where the scores are P; 0 of pairs that
/// are hidden or do not exist. visit(i, position, before): each score as the text reads it.
template <Config C, typename Bias, typename Visit>
__device__ __forceinline__ void score_factors(const ScoreBlock<C>& block, Scores<C>& s, const RowNumbers<C>& lse_log2,
                                              Bias& bias, const Visit& visit) {
  const auto& captures = score::captures_of<C.rule>(block.params);
  apply_factor<C>(block, s);
  if constexpr (!C.rule.normalized) {
    unnormalized_scores<C>(block, true, s, bias, [&](int i, const expression::Position& pair, float, float before) {
      visit(i, pair, before);
    });
#pragma unroll
    for (float& x : s) {
      x = x == kMinusInfinity ? 0.0F : 1.0F;
    }
    return;
  }
  for_each_score_before_text<C>(block, s, bias, [&](int i, const expression::Position& pair, float, float before) {
    visit(i, pair, before);
    s[i] = with_kept<C>(
        block, i, [&](const auto&... kept) { return score::text_score<C.rule>(captures, pair, kept..., before); });
  });
  if ((hides_by_text(C.rule) && !block.shown) || !block.work.template sees_all<C.rule>(block.query_first / C.block_m)) {
    hide<C>(block, s);
  }
  const bool large = block.has_large_rows();
  const auto* row_max = reinterpret_cast<const float2*>(block.of_query(block.params.row_max));
  const int left = block.work.q.used - block.query();
#pragma unroll
  for (int j = 0; j < C.block_m / 8; ++j) {
    const float2 lse = row_numbers<C>(lse_log2, j);
    const float2 highest = large ? row_max[4 * j] : float2{};
#pragma unroll
    for (int i = 4 * j; i < 4 * j + 4; ++i) {
      const float exponent = score::large_exponent(s[i], kLog2E, i % 2 == 0 ? highest.x : highest.y,
                                                   i % 2 == 0 ? lse.x : lse.y, -kMinusInfinity);
      s[i] = i / 4 * 8 + i % 2 < left ? ptx::ex2_approx(exponent) : 0.0F;
    }
  }
}

}  // namespace strobe::sm90::backward
