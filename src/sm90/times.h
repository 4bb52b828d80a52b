// SPDX-License-Identifier: Apache-2.0
// What the kernels of a plan have to do, by unit: for the time that a plan predicts.
#pragma once

#include "gpu/plan/times.h"
#include "sm90/backward_plan.h"
#include "sm90/forward_plan.h"

namespace strobe::sm90 {

gpu::PlannedWork forward_work(const AttentionProblem& problem, const DeviceShape& shape, const ForwardPlan& plan);

/// Whose steps are known by simulating the order of items, which takes up to some milliseconds, or by a formula.
enum class BackwardSteps : unsigned char { simulated, by_formula };

gpu::PlannedWork backward_work(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan,
                               BackwardSteps by = BackwardSteps::simulated);

}  // namespace strobe::sm90
