// SPDX-License-Identifier: Apache-2.0
// The Hopper engine's forward: a plan made into launches.
#pragma once

#include <functional>

#include "engine/engine.h"
#include "kernels/sm90/forward/config.h"
#include "strobe/export.h"

namespace strobe::sm90 {

/// Chooses the kernel and loads it, compiling it first where neither the pack nor the cache has it. `problem` is on a
/// device that the engine serves.
engine::PlannedCallResult plan_forward(const AttentionProblem& problem);

/// While it lives, the forwards that this thread plans (by make_plan) take the variant that `change` makes of the
/// planner's, which must fit the problem. For measurements of a variant's fields and tests of its debug build: exported
/// for the program and the tests, no part of the public API.
class STROBE_API VariantScope {
 public:
  using Change = std::function<void(forward::Config& config)>;

  explicit VariantScope(Change change);
  ~VariantScope();
  VariantScope(const VariantScope&) = delete;
  VariantScope& operator=(const VariantScope&) = delete;

 private:
  Change previous_;
};

}  // namespace strobe::sm90
