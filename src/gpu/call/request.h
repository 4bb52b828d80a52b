// SPDX-License-Identifier: Apache-2.0
// What a family of kernels is asked to plan.
#pragma once

#include <string>
#include <string_view>

#include "call/problem.h"
#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "runtime/device.h"

namespace strobe::gpu {

struct Request {
  const AttentionProblem& problem;
  const runtime::CudaDevice& device;  // which the family serves
  DeviceShape shape;                  // the device's, or what a test plans for
  std::string_view family;            // its name
  PlannedChoice choice;               // in the place of the family's rules
  std::string reason;                 // why it is asked: for explain()

  /// The same for a problem that stands for this one, and that lives as long as the result.
  Request of(const AttentionProblem& other) const { return {other, device, shape, family, choice, reason}; }
};

}  // namespace strobe::gpu
