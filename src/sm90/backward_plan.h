// SPDX-License-Identifier: Apache-2.0
// Kernels, launches and workspace of the sm90 backward: a pure function of the problem and the device's shape.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "call/problem.h"
#include "gpu/plan/backward_workspace.h"
#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "kernels/auxiliary/prepare_backward_params.h"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/query_gradient/config.h"
#include "sm90/backward_parts.h"
#include "strobe/status.h"

namespace strobe::sm90 {

using gpu::DeviceShape;

/// How much workspace dS may take by roles, where it is kept for the kernel that computes dQ.
/// log: bwd-roles-ds-chunks
struct ScoreGradientLimits {
  // Launches that write less leave multiprocessors without work; larger ones are not faster.
  std::size_t bytes = std::size_t{1} << 30U;
  // For the longest sequences, where `bytes` holds less than a block of keys for each multiprocessor.
  std::size_t most_bytes = std::size_t{4} << 30U;
};

/// Where the parts of the workspace begin, in bytes.
struct BackwardWorkspace : gpu::BackwardWorkspace {
  std::size_t lse_hi_lo = 0;
  std::size_t d_hi_lo = 0;
  std::size_t dq_sum = 0;
  std::size_t dq_semaphores = 0;
  std::size_t ds = 0;
  std::size_t dq_before = 0;
  std::size_t dk_sums = 0;
  std::size_t dv_sums = 0;
};

/// What one launch of the main kernel covers, and by roles the one after it that computes dQ.
struct BackwardLaunch {
  int first_head_kv = 0;  // of [batch, heads_kv]
  int heads_kv = 0;
  int first_key_block = 0;  // of each of these heads
  int key_blocks = 0;
};

struct BackwardPlan {
  backward::Config config;
  auxiliary::PrepareBackwardConfig prepare;
  backward::QueryGradientConfig query;   // by roles
  backward::Params params{};             // what all launches have in common; without addresses
  std::vector<BackwardLaunch> launches;  // none: there is nothing to compute
  bool finishes = false;                 // whether a kernel for dQ follows each
  BackwardWorkspace workspace;
};

/// The variant for a problem, or unsupported, naming what the kernels lack. Pointers and strides are not known here.
/// With the tiles that `choice` asks for, where they serve the problem; else with the rule's, or with others where
/// those leave much of the device idle and the model of times is sure that these are faster.
Result<backward::Config> backward_config(const AttentionProblem& problem, const DeviceShape& shape,
                                         const gpu::Choice& choice = {});

/// With a bias whose address and strides are multiples of 16 bytes: the variant in the place of `config`, if there is
/// one for this problem.
std::optional<backward::Config> aligned_bias_config(const AttentionProblem& problem, const backward::Config& config);

/// The variant of the kernel that computes the bias's gradient.
backward::Config bias_gradient_config(const backward::Config& config);

/// The same of the kernel for the gradients of captures. `ordered`: that their bits are the same every time.
backward::Config capture_gradient_config(const backward::Config& config, bool ordered);

/// The variant of the kernel that makes dQ of its sums: one for all ways to share out the keys.
backward::Config query_sums_config(backward::Config config);

/// What the planner leaves to others to change.
struct BackwardChoices {
  ScoreGradientLimits limits;
  PartHeads heads;
  int section_heads = 0;  // 0: as the rule says
};

/// The plan of a variant that fits the problem.
BackwardPlan backward_plan(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config,
                           const BackwardChoices& choices);
BackwardPlan backward_plan(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config,
                           const gpu::Choice& choice = {});

/// The plan in a few lines of text.
std::string explain(const AttentionProblem& problem, const BackwardPlan& plan);

}  // namespace strobe::sm90
