// SPDX-License-Identifier: Apache-2.0
// What a tune may choose of this family's plans.
#pragma once

#include <vector>

#include "call/problem.h"
#include "gpu/plan/candidates.h"
#include "gpu/plan/device.h"
#include "strobe/status.h"

namespace strobe::sm80 {

/// For a call of the problem's pass, the rule's choice first; unsupported where the family has no plan for it.
Result<std::vector<gpu::Candidate>> candidates(const AttentionProblem& problem, const gpu::DeviceShape& shape);

}  // namespace strobe::sm80
