// SPDX-License-Identifier: Apache-2.0
// Plans of the calls that this thread made before: making one costs more than launching it.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace strobe::api {

/// The plan of an equal problem, engine and number of threads; null where this thread has none.
std::shared_ptr<const engine::PlannedCall> find_plan(const AttentionProblem& problem, const Execution& execution);

/// Keeps a plan for find_plan. The one that was not used for longest makes room for it.
void keep_plan(const AttentionProblem& problem, const Execution& execution,
               std::shared_ptr<const engine::PlannedCall> call);

}  // namespace strobe::api
