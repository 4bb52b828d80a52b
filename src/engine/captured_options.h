// SPDX-License-Identifier: Apache-2.0
// Calls whose bias or slopes are captures of their score's text.
#pragma once

#include "call/problem.h"
#include "engine/engine.h"

namespace strobe::engine {

/// `call`, planned for with_built_in_options(problem), run with captures in the place of its bias and slopes, and with
/// the gradient of one in the place of d_bias. Where it has no such options, `call`.
PlannedCallResult with_captured_options(const AttentionProblem& problem, const PlannedCallResult& call);

}  // namespace strobe::engine
