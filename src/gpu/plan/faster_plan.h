// SPDX-License-Identifier: Apache-2.0
// Whether another plan takes the place of a rule's. Rules were measured on calls that fill a device. Where tiles are
// fewer than its multiprocessors, or few are left for a last round, the model of times compares other plans with the
// rule's.
#pragma once

#include <cstdint>

#include "call/checked.h"
#include "gpu/plan/device.h"
#include "gpu/plan/times.h"

namespace strobe::gpu {

/// Whether tiles are so few that an empty last round takes much of the time: of more the model is not asked.
constexpr bool has_few_tiles(Checked tiles, const DeviceShape& shape) {
  constexpr std::int64_t kMostRounds = 6;
  return tiles.at_most(kMostRounds * shape.multiprocessors);
}

/// Whether multiprocessors have nothing to do for more than a fifth of the main kernel's time.
inline bool leaves_idle(const PlannedWork& work) {
  constexpr double kFilled = 0.8;
  return work.filled < kFilled;
}

/// The fastest of a rule's plan and others, by their predicted seconds. The model is off by up to a tenth, and others
/// must be `margin` times as fast as the rule's.
class FasterPlan {
 public:
  FasterPlan(double rule_seconds, double margin) : least_(rule_seconds / margin) {}

  /// Whether this one takes the place of those before.
  bool takes(double seconds) {
    if (seconds > least_) return false;
    least_ = seconds;
    return true;
  }

 private:
  double least_;
};

}  // namespace strobe::gpu
