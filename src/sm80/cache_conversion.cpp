// SPDX-License-Identifier: Apache-2.0
#include "sm80/cache_conversion.h"

#include "gpu/plan/converted_cache.h"
#include "gpu/plan/supported.h"

namespace strobe::sm80 {

bool converts_cache(const AttentionProblem& problem) {
  return (gpu::has_wide_heads(problem) || problem.row_invariant) && gpu::can_convert_cache(problem);
}

AttentionProblem kernels_problem(const AttentionProblem& problem) {
  return converts_cache(problem) ? gpu::with_converted_cache(problem) : problem;
}

}  // namespace strobe::sm80
