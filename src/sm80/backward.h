// SPDX-License-Identifier: Apache-2.0
// The Ampere engine's backward: a plan made into launches.
#pragma once

#include <functional>

#include "engine/engine.h"
#include "kernels/sm80/backward/config.h"
#include "sm80/device_shape.h"
#include "strobe/export.h"

namespace strobe::sm80 {

/// Chooses the kernels and loads them, compiling them first where neither the pack nor the cache has them. `problem` is
/// on a device that the engine serves.
engine::PlannedCallResult plan_backward(const AttentionProblem& problem);

/// While it lives, the backwards that this thread plans (by make_plan) are planned for what `device` makes of the
/// device's shape, and take the variant that `config` makes of the planner's, which must fit the problem. For tests of
/// other devices' tiles and measurements: exported for them, no part of the public API.
class STROBE_API BackwardScope {
 public:
  struct Change {
    std::function<void(DeviceShape& shape)> device;
    std::function<void(backward::Config& config)> config;
  };

  explicit BackwardScope(Change change);
  ~BackwardScope();
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  Change previous_;
};

}  // namespace strobe::sm80
