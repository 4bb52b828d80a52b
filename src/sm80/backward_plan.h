// SPDX-License-Identifier: Apache-2.0
// Kernels, tiles and workspace of the sm80 backward: a pure function of the problem and the device's shape.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "call/problem.h"
#include "gpu/plan/backward_workspace.h"
#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "kernels/auxiliary/prepare_backward_params.h"
#include "kernels/score/backward_params.h"
#include "kernels/sm80/backward/config.h"

#include "strobe/status.h"

namespace strobe::sm80 {

using gpu::DeviceShape;

/// Where the parts of the workspace begin, in bytes. What must be zero at the start is one part: the sums of dQ, and
/// behind them the semaphores.
struct BackwardWorkspace : gpu::BackwardWorkspace {
  std::size_t dq_sum = 0;
  std::size_t dq_semaphores = 0;
  std::size_t zeros_bytes = 0;  // from dq_sum on
};

struct BackwardPlan {
  backward::Config config;
  auxiliary::PrepareBackwardConfig prepare;
  BackwardParams params{};  // without addresses and strides
  int items = 0;            // CTAs of the main kernel; 0: there is nothing to compute
  int query_blocks = 0;     // CTAs of the kernel that converts dQ; 0: there is no dQ
  BackwardWorkspace workspace;
};

/// The variant for a problem, or unsupported, naming what the kernels lack. Pointers and strides are not known here.
/// With the tiles that `choice` asks for, where they fit.
Result<backward::Config> backward_config(const AttentionProblem& problem, const DeviceShape& shape,
                                         const gpu::Choice& choice = {});

/// `config` with each of the tiles that a choice may ask for: those that fit the device, the fastest first.
std::vector<backward::Config> tile_choices(const backward::Config& config, const DeviceShape& shape);

/// The plan of a variant that fits the problem.
BackwardPlan backward_plan(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config,
                           const gpu::Choice& choice = {});

/// The plan in a few lines of text.
std::string explain(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan);

}  // namespace strobe::sm80
