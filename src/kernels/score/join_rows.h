// SPDX-License-Identifier: Apache-2.0
// Two segments of a row's keys become one, in float32: with the maxima m and n in powers of two and M = max(m, n), sums
// of exponentials and of P V become 2^(m - M) x + 2^(n - M) y. Whoever joins segments does it here, so that a row has
// the same bits.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/ptx/arithmetic.h"
#include "kernels/score/parts.h"

namespace strobe::score {

/// What P V of the segments so far and of the next are multiplied with. One that saw no key is not looked at.
struct JoinFactors {
  float kept, next;
  bool takes_kept, takes_next;
};

/// Factors of segments whose rows have these statistics; `highest` is their maximum. A segment that joins nothing stays
/// as it is.
__device__ __forceinline__ JoinFactors join_factors(float kept_max, const PartStatistics& next, float highest) {
  const bool takes_kept = kept_max != kMinusInfinity;
  const bool takes_next = next.sum != 0.0F;
  const bool both = takes_kept && takes_next;
  return {both ? ptx::ex2_approx(kept_max - highest) : 1.0F, both ? ptx::ex2_approx(next.max_log2 - highest) : 1.0F,
          takes_kept, takes_next};
}

/// A number of a row whose segments are joined. Without a branch, which would take registers of all that it chooses
/// from.
__device__ __forceinline__ float joined(float kept, float next, const JoinFactors& factors) {
  return __fmaf_rn(factors.takes_next ? next : 0.0F, factors.next,
                   __fmul_rn(factors.takes_kept ? kept : 0.0F, factors.kept));
}

/// `next` joins `kept`.
__device__ __forceinline__ JoinFactors join_rows(PartStatistics& kept, const PartStatistics& next) {
  const float highest = next.sum != 0.0F ? fmaxf(kept.max_log2, next.max_log2) : kept.max_log2;
  const JoinFactors factors = join_factors(kept.max_log2, next, highest);
  kept = {highest, joined(kept.sum, next.sum, factors)};
  return factors;
}

}  // namespace strobe::score
