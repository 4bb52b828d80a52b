// SPDX-License-Identifier: Apache-2.0
// The Ampere engine's forward: a plan made into a launch.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "kernels/sm80/forward/config.h"
#include "sm80/device_shape.h"
#include "sm80/engine.h"
#include "strobe/export.h"

namespace strobe::sm80 {

/// The engine that was asked for a forward.
struct Caller {
  std::string_view engine = kEngine;  // in errors
  std::string explanation;            // what explain() begins with, where that is another engine
};

/// Chooses the kernel and loads it, compiling it first where neither the pack nor the cache has it. `problem` is on a
/// device that the engine serves.
engine::PlannedCallResult plan_forward(const AttentionProblem& problem, const Caller& caller = {});

/// While it lives, the forwards that this thread plans (by make_plan) are planned for what `device` makes of the
/// device's shape, and take the variant that `config` makes of the planner's, which must fit the problem. For tests of
/// other devices' tiles and measurements: exported for them, no part of the public API.
class STROBE_API ForwardScope {
 public:
  struct Change {
    std::function<void(DeviceShape& shape)> device;
    std::function<void(forward::Config& config)> config;
  };

  explicit ForwardScope(Change change);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  Change previous_;
};

}  // namespace strobe::sm80
