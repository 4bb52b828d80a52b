// SPDX-License-Identifier: Apache-2.0
// dP of a step's scores, without what dropout drops, beside D.
#pragma once

#include "kernels/sm90/backward/scores.h"

namespace strobe::sm90::backward {

/// visit(i, gradient, d) for each score: its probability's gradient and its query's D.
template <Config C, typename Visit>
__device__ __forceinline__ void for_each_kept_gradient(const ScoreBlock<C>& block, const Scores<C>& dp,
                                                       const RowNumbers<C>& d_sum, const Visit& visit) {
  constexpr int kPart = C.rule.dropout ? kDropoutColumns : C.block_m;  // queries that are drawn for at a time
  const float keep_factor = C.rule.dropout ? block.params.score.dropout.keep_factor : 1.0F;
#pragma unroll
  for (int first = 0; first < C.block_m; first += kPart) {
    const GradientDropout<C, kPart> dropout(block, first);
#pragma unroll
    for (int j = 0; j < kPart / 8; ++j) {
      const float2 d = row_numbers<C>(d_sum, first / 8 + j);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const int i = first / 2 + 4 * j + 2 * r;
        const float2 gradient = dropout.kept(&dp[i], j, r);
        visit(i, C.rule.dropout ? gradient.x * keep_factor : gradient.x, d.x);
        visit(i + 1, C.rule.dropout ? gradient.y * keep_factor : gradient.y, d.y);
      }
    }
  }
}

}  // namespace strobe::sm90::backward
