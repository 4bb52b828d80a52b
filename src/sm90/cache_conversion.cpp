// SPDX-License-Identifier: Apache-2.0
#include "sm90/cache_conversion.h"

#include "gpu/call/override.h"
#include "gpu/plan/converted_cache.h"
#include "gpu/plan/supported.h"
#include "kernels/sm90/forward/config.h"
#include "sm90/pages.h"

namespace strobe::sm90 {
namespace {

bool lacks_a_kernel(const AttentionProblem& problem) {
  return gpu::has_wide_heads(problem) || (problem.row_invariant && reads_stored_page_rows(problem));
}

}  // namespace

bool converts_cache(const AttentionProblem& problem) {
  if (!gpu::can_convert_cache(problem)) return false;
  if (lacks_a_kernel(problem)) return true;
  // A test's variant may be one that converts K and V itself.
  return gpu::gains_by_conversion(problem) && !gpu::is_overridden<forward::Config>();
}

AttentionProblem kernels_problem(const AttentionProblem& problem) {
  return converts_cache(problem) ? gpu::with_converted_cache(problem) : problem;
}

}  // namespace strobe::sm90
