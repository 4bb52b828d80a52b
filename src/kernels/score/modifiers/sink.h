// SPDX-License-Identifier: Apache-2.0
// A sink: a logit of a query head that joins the sum of its rows and has no value. Scores stay as they are: what joins
// is OnlineSoftmax::join(), and of a row computed again RowSums::join(). A row that sees no key has the sink as its
// LSE.
//
// Derivative: none of the scores, as the LSE has the sink in it; its own gradient is auxiliary/sink_gradient.h.
// Parameter: ScoreParams::sink, [query heads].
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/params.h"
#include "kernels/score/rule.h"

namespace strobe::score {

/// The logit of a query head, for exponents of 2.
__device__ __forceinline__ float sink_log2(const float* sink, long long head) { return sink[head] * kLog2E; }

/// A query head's sink for exponents of 2; -inf in rules without one.
template <ScoreRule R>
__device__ __forceinline__ float sink_log2(const ScoreParams& params, int head) {
  return R.sink ? sink_log2(params.sink, head) : kMinusInfinity;
}

}  // namespace strobe::score
