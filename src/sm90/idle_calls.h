// SPDX-License-Identifier: Apache-2.0
// Calls that are planned with other tiles than the rule's, because those leave much of a device idle.
#pragma once

#include <optional>

#include "call/problem.h"
#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "gpu/variant/pack_list.h"

namespace strobe::sm90 {

/// The rule's tiles, if the planner takes others.
std::optional<gpu::Choice> rule_left(const AttentionProblem& problem, const gpu::DeviceShape& shape);

/// Adds the kernels of single sequences that are planned so on devices of many multiprocessors or of few.
void add_idle_calls(gpu::PackList& list);

}  // namespace strobe::sm90
