// SPDX-License-Identifier: Apache-2.0
// Kernel, tiles and schedule of the sm90 forward: a pure function of the problem and the device's shape.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "call/checked.h"
#include "call/problem.h"
#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "gpu/plan/few_queries.h"
#include "kernels/sm90/forward/config.h"
#include "strobe/row_format.h"
#include "strobe/status.h"

namespace strobe::sm90 {

using gpu::DeviceShape;

struct ForwardPlan {
  forward::Config config;
  TileParams tiles{};                    // tiles.tiles == 0: there is nothing to compute
  int workers = 0;                       // CTAs that walk over the tiles
  std::shared_ptr<const TileList> list;  // dealt schedules: what each of them computes
  gpu::SplitPlan split;                  // split schedules
  RowFormat rows;                        // of K, where producers convert it
  std::size_t kept_bytes = 0;            // of device memory, where segments leave their sums there
};

/// Device memory that a run takes.
inline std::size_t workspace_bytes(const ForwardPlan& plan) { return plan.split.total_bytes + plan.kept_bytes; }

/// The variant for a problem, or unsupported, naming what the kernels lack. Pointers and strides are not known here.
/// With the tiles and the split that `choice` asks for, where they may be; else with the rule's tiles, or with others
/// where those leave much of the device idle and the model of times is sure that these are faster.
Result<forward::Config> forward_config(const AttentionProblem& problem, const DeviceShape& shape,
                                       const gpu::Choice& choice = {});

/// `config` with each of the tiles that a choice may ask for: its own first.
std::vector<forward::Config> tile_choices_of(const AttentionProblem& problem, const forward::Config& config);

/// With a bias whose address and strides are multiples of 16 bytes: the variant in the place of `config`, if there is
/// one for this problem.
std::optional<forward::Config> aligned_bias_config(const AttentionProblem& problem, const DeviceShape& shape,
                                                   const forward::Config& config);

/// Where V is K's first columns: the variant in the place of `config`, if there is one for this problem.
std::optional<forward::Config> shared_values_config(const AttentionProblem& problem, const forward::Config& config);

/// Whether it takes that place in every call: with qv, whose K has columns of V, but for rows that threads copy, which
/// must lie within what they count.
bool always_shares_values(const AttentionProblem& problem, const forward::Config& config);

/// The plan of a variant that fits the problem.
ForwardPlan forward_plan(const AttentionProblem& problem, const DeviceShape& shape, const forward::Config& config,
                         const gpu::Choice& choice = {});

/// The plan in a few lines of text.
std::string explain(const AttentionProblem& problem, const ForwardPlan& plan);

}  // namespace strobe::sm90
