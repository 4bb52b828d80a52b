// SPDX-License-Identifier: Apache-2.0
// What the kernels of a plan have to do, by unit: for the time that a plan predicts.
#pragma once

#include "gpu/plan/times.h"
#include "sm80/backward_plan.h"
#include "sm80/forward_plan.h"

namespace strobe::sm80 {

/// A warp reads its operands and multiplies in turn; another runs beside it at times. log: predicted-times
inline constexpr double kAloneExponentials = 0.4;
inline constexpr double kAloneSharedMemory = 0.4;

gpu::PlannedWork forward_work(const AttentionProblem& problem, const DeviceShape& shape, const ForwardPlan& plan);

gpu::PlannedWork backward_work(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan);

}  // namespace strobe::sm80
