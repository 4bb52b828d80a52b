// SPDX-License-Identifier: Apache-2.0
// Scores as a text, or a rule without a softmax, takes and leaves them.
#pragma once

#include "kernels/score/apply.h"
#include "kernels/sm80/backward/score_block.h"

namespace strobe::sm80::backward {

/// visit(i, column, hidden, position, capped, before, after) for each of a thread's scores: its query's column, whether
/// a mask hides the pair, the score after its softcap, as its text reads it, and as that leaves it.
template <bool masked, Config C, typename Visit>
__device__ __forceinline__ void for_each_text_score(const ScoreBlock<C>& block, const Scores<C>& s,
                                                    const PartBias<C>& bias, const Visit& visit) {
  const ScoreParams& params = block.params.score;
  const VisiblePart<C> visible(block);
  const TextPart<C> text(block);
  const score::ProductFactor<C.rule> factor(params, block.work.k.used);
  const auto& captures = score::captures_of<C.rule>(block.params);
  const expression::Position first = first_pair(block);
  const float alibi = C.rule.alibi ? score::slope_log2(params.alibi, block.work.sequence, block.head) / kLog2E : 0.0F;
  const int distance = block.query() + block.work.diagonal - block.key(0);
#pragma unroll
  for (int i = 0; i < C.part_m / 2; ++i) {
    const int r = i / 2 % kRowsPerThread;
    const int column = i / 4 * 8 + i % 2;
    expression::Position position = first;
    position.q += column;
    position.k += 8 * r;
    const float capped = score::softcapped<C.rule>(params, factor.times(s[i]));
    float term = 0.0F;
    if constexpr (C.rule.bias) {
      term = bias.terms[i];
    }
    float before = score::with_scale_and_bias(C.rule, params, capped, term);
    if constexpr (C.rule.alibi) {
      before = score::less_slope(before, alibi, static_cast<float>(distance - 8 * r + column));
    }
    const bool hidden = (masked && visible.hides(r, column)) || text.hides(i);
    const float after = score::text_score<C.rule>(captures, position, before);
    visit(i, column, hidden, position, capped, before, after);
  }
}

}  // namespace strobe::sm80::backward
