// SPDX-License-Identifier: Apache-2.0
// What a plan remembers.
#pragma once

#include <memory>

#include "call/problem.h"
#include "engine/engine.h"
#include "strobe/plan.h"

namespace strobe {

/// The problem, the options that made it and the engine's decisions. Strides are the caller's own in every run.
struct Plan::State {
  AttentionProblem problem;
  AttentionOptions options;
  Engine engine = Engine::automatic;
  std::shared_ptr<const engine::PlannedCall> call;
};

}  // namespace strobe
