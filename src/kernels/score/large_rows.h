// SPDX-License-Identifier: Apache-2.0
// Rows of a large LSE in a backward. A float32 of their size has no room for the logarithm of a sum: P = exp(S - LSE)
// would not add up to 1, or overflow. The step before the backward finds such a row's largest score and its sum of
// exponentials anew (auxiliary/large_rows.h); P is then made of the difference from that score.
#pragma once

#include "kernels/score/apply.h"
#include "kernels/score/backward_params.h"
#include "kernels/score/fragment.h"

namespace strobe::score {

/// Whether some query of these heads of a sequence is such a row, by whole warps. Without a softmax there is none.
template <ScoreRule R>
__device__ __forceinline__ bool has_large_rows(const BackwardParams& params, int sequence, int first_head, int heads) {
  if constexpr (!R.normalized) {
    return false;
  }
  const unsigned* const flags =
      params.large_rows + (static_cast<long long>(sequence) * params.heads + first_head) * params.row_groups;
  unsigned any = 0;
  for (int i = threadIdx.x % kThreadsPerWarp; i < heads * params.row_groups; i += kThreadsPerWarp) {
    any |= flags[i];
  }
  return __any_sync(kFullWarp, any != 0);
}

/// Whether the group of rows that a query lies in has one; `head_in_batch`: counted through the batch.
template <ScoreRule R>
__device__ __forceinline__ bool has_large_rows(const BackwardParams& params, int head_in_batch, int query) {
  if constexpr (!R.normalized) {
    return false;
  }
  return params.large_rows[static_cast<long long>(head_in_batch) * params.row_groups + query / kLargeRowsGroup] != 0;
}

/// The exponent of a probability where a call has such rows: of a score as transformed() leaves it. `row_max` and
/// `lse_log2` are the row's, see BackwardParams. No more than `most`, which scores that are rounded differently from
/// those that the maximum was found among might pass.
__device__ __forceinline__ float large_exponent(float transformed, float scale, float row_max, float lse_log2,
                                                float most) {
  const float exponent = __fmaf_rn(transformed - row_max, scale, -lse_log2);
  return exponent > most ? most : exponent;  // NaN stays NaN
}

/// The same of a softcapped score with the bias `term`, whose query is `distance` keys behind its key's diagonal.
/// `scale`: remaining_scale(). `slope`: ALiBi's in powers of two, over the scale.
template <ScoreRule R>
__device__ __forceinline__ float large_exponent(const ScoreParams& params, float score, float term, float slope,
                                                int distance, float scale, float row_max, float lse_log2, float most) {
  score = with_scale_and_bias(R, params, score, term);
  if constexpr (R.alibi) {
    score = less_slope(score, slope, static_cast<float>(distance));
  }
  return large_exponent(score, scale, row_max, lse_log2, most);
}

}  // namespace strobe::score
