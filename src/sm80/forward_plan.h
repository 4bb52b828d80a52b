// SPDX-License-Identifier: Apache-2.0
// Kernel, tiles and their order of the sm80 forward: a pure function of the problem and the device's shape.
#pragma once

#include <cstddef>
#include <string>

#include "call/problem.h"
#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "gpu/plan/few_queries.h"
#include "kernels/sm80/forward/config.h"
#include "kernels/sm80/forward/params.h"
#include "strobe/status.h"

namespace strobe::sm80 {

using gpu::DeviceShape;

struct ForwardPlan {
  forward::Config config;
  forward::TileOrder order{};
  int tiles = 0;               // 0: there is nothing to compute
  int workers = 0;             // CTAs: one for each tile, or those that share all
  gpu::SplitPlan split;        // split schedules
  std::size_t kept_bytes = 0;  // of device memory, for what segments leave
};

/// Of device memory, that a call needs.
constexpr std::size_t workspace_bytes(const ForwardPlan& plan) { return plan.split.total_bytes + plan.kept_bytes; }

/// The variant for a problem, or unsupported, naming what the kernels lack. Pointers and strides are not known here.
/// With the tiles and the split that `choice` asks for, where they may be.
Result<forward::Config> forward_config(const AttentionProblem& problem, const DeviceShape& shape,
                                       const gpu::Choice& choice = {});

/// The plan of a variant that fits the problem.
ForwardPlan forward_plan(const AttentionProblem& problem, const DeviceShape& shape, const forward::Config& config,
                         const gpu::Choice& choice = {});

/// The plan in a few lines of text.
std::string explain(const AttentionProblem& problem, const DeviceShape& shape, const ForwardPlan& plan);

}  // namespace strobe::sm80
