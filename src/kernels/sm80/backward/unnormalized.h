// SPDX-License-Identifier: Apache-2.0
// Scores that are the probabilities.
#pragma once

#include "kernels/sm80/backward/text_scores.h"

namespace strobe::sm80::backward {

/// visit(i, shown, position, capped, before, after) for each of a thread's scores, as for_each_text_score() has them;
/// `shown`: it is a probability, which those of pairs that are hidden or do not exist and those of -inf are not.
template <bool masked, Config C, typename Visit>
__device__ __forceinline__ void for_each_unnormalized(const ScoreBlock<C>& block, const Scores<C>& s,
                                                      const PartBias<C>& bias, const Visit& visit) {
  const int left = block.work.q.used - block.query();
  for_each_text_score<masked>(block, s, bias,
                              [&](int i, int column, bool hidden, const expression::Position& position, float capped,
                                  float before, float after) {
                                const bool shown = !hidden && column < left && after != kMinusInfinity;
                                visit(i, shown, position, capped, before, after);
                              });
}

}  // namespace strobe::sm80::backward
