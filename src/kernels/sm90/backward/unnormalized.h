// SPDX-License-Identifier: Apache-2.0
// P of scores that are the probabilities, and the derivative that dP is multiplied with.
#pragma once

#include "kernels/score/unnormalized.h"
#include "kernels/sm90/backward/text_probabilities.h"

namespace strobe::sm90::backward {

/// S becomes the scores that are P, of pairs that are hidden or do not exist -inf. `masked`: some pairs may be hidden.
/// visit(i, position, capped, before) is called for each score before, as for_each_score_before_text() has it.
template <Config C, typename Bias, typename Visit>
__device__ __forceinline__ void unnormalized_scores(const ScoreBlock<C>& block, bool masked, Scores<C>& s, Bias& bias,
                                                    const Visit& visit) {
  const auto& captures = score::captures_of<C.rule>(block.params);
  for_each_score_before_text<C>(block, s, bias, [&](int i, const expression::Position& at, float capped, float before) {
    s[i] = with_kept<C>(block, i,
                        [&](const auto&... kept) { return score::text_score<C.rule>(captures, at, kept..., before); });
    visit(i, at, capped, before);
  });
  if (masked) {
    hide<C>(block, s);
  }
  const int left = block.work.q.used - block.query();
  if (block.query_first + C.block_m > block.work.q.used) {
#pragma unroll
    for (int i = 0; i < C.block_m / 2; ++i) {
      s[i] = i / 4 * 8 + i % 2 < left ? s[i] : kMinusInfinity;
    }
  }
}

/// The derivative in the place of S, times 2^12, and P as operand `p`. Hidden pairs give 0, whatever their scores were.
template <Config C, typename Bias>
__device__ __forceinline__ void unnormalized_probabilities(const ScoreBlock<C>& block, bool masked, Scores<C>& s,
                                                           Operand<C>& p, Bias& bias) {
  constexpr float kLift = 1.0F / kProbabilityScale;
  const auto& captures = score::captures_of<C.rule>(block.params);
  Scores<C> slope;
  unnormalized_scores<C>(block, masked, s, bias,
                         [&](int i, const expression::Position& at, float capped, float before) {
                           slope[i] = kLift * with_kept<C>(block, i, [&](const auto&... kept) {
                                        return score::text_slope<C.rule>(captures, at, kept..., before);
                                      });
                           if constexpr (C.rule.softcap) {
                             slope[i] *= fmaxf(score::softcap_derivative(capped), 0.0F);
                           }
                         });
#pragma unroll
  for (int i = 0; i < C.block_m / 2; i += 2) {
    p[i / 8][i % 8 / 2] =
        pack<C.rule.element>(score::probability_of_score(s[i]), score::probability_of_score(s[i + 1]));
    s[i] = s[i] == kMinusInfinity ? 0.0F : slope[i];
    s[i + 1] = s[i + 1] == kMinusInfinity ? 0.0F : slope[i + 1];
  }
}

}  // namespace strobe::sm90::backward
