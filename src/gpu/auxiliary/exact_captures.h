// SPDX-License-Identifier: Apache-2.0
// Gradients of captures whose bits are the same every time: exact sums in the workspace, rounded in the end.
#pragma once

#include <string_view>

#include "call/problem.h"
#include "engine/engine.h"
#include "runtime/device.h"
#include "runtime/variant.h"

namespace strobe::gpu {

/// Whether the gradients of a call's captures are such sums.
inline bool sums_captures_exactly(const AttentionProblem& problem) {
  return problem.deterministic && problem.expression.gradients != 0;
}

/// Unsupported where sums would take too much memory, or have too many terms.
Status check_exact_captures(const AttentionProblem& problem);

/// The same for all calls.
runtime::Variant round_gradient_variant(std::string_view architecture);

/// `call`, which adds to exact sums, with zeros before it and gradients after it; where these are not wanted, `call`.
engine::PlannedCallResult with_exact_captures(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                              const engine::PlannedCallResult& call);

}  // namespace strobe::gpu
