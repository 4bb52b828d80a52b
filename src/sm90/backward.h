// SPDX-License-Identifier: Apache-2.0
// The Hopper engine's backward: a plan made into launches.
#pragma once

#include <functional>

#include "engine/engine.h"
#include "sm90/backward_plan.h"
#include "strobe/export.h"

namespace strobe::sm90 {

/// Chooses the kernels and loads them, compiling them first where neither the pack nor the cache has them. `problem` is
/// on a device that the engine serves.
engine::PlannedCallResult plan_backward(const AttentionProblem& problem);

/// While it lives, the backwards that this thread plans (by make_plan) take the variant and the limits that `change`
/// makes of the planner's, which must fit the problem. For measurements of a variant's fields and tests: exported for
/// the program and the tests, no part of the public API.
class STROBE_API BackwardScope {
 public:
  using Change = std::function<void(backward::Config& config, ScoreGradientLimits& limits)>;

  explicit BackwardScope(Change change);
  ~BackwardScope();
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  Change previous_;
};

}  // namespace strobe::sm90
