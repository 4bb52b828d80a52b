// SPDX-License-Identifier: Apache-2.0
// What a plan remembers.
#pragma once

#include <memory>
#include <variant>

#include "call/problem.h"
#include "engine/engine.h"
#include "strobe/plan.h"

namespace strobe {

/// The problem, what made it and the engine's decisions. Strides are the caller's own in every run.
struct Plan::State {
  AttentionProblem problem;
  // For their layout: they point at what may be gone.
  std::variant<ForwardArguments, BackwardArguments, JvpArguments> arguments;
  AttentionOptions options;
  Engine engine = Engine::automatic;
  std::shared_ptr<const engine::PlannedCall> call;
};

}  // namespace strobe
