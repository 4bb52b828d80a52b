// SPDX-License-Identifier: Apache-2.0
// Calls whose keys are shared out among the CTAs, and what that takes: a pure function of the problem and the device's
// shape.
#pragma once

#include <cstddef>
#include <string>

#include "call/problem.h"
#include "hopper/device_shape.h"
#include "kernels/hopper/forward/config.h"
#include "kernels/steps/combine_params.h"

namespace strobe::hopper {

/// CTAs that share the keys of `tiles` tiles, each of which sees up to `keys`; 0: a tile is one CTA's.
int split_workers(const AttentionProblem& problem, const forward::Config& config, std::int64_t tiles, std::int64_t keys,
                  const DeviceShape& shape);

/// Segments of a row's keys, at most.
std::int64_t segments_of(const AttentionProblem& problem, const forward::Config& config);

/// The workspace of a split call and the kernel that puts its parts together.
struct SplitPlan {
  int slot_rows = 0;
  std::size_t tiles = 0;  // offsets, in bytes
  std::size_t statistics = 0;
  std::size_t sums = 0;
  std::size_t total_bytes = 0;
  steps::CombineConfig combine;
};

SplitPlan split_plan(const AttentionProblem& problem, const forward::Config& config, const TileParams& tiles,
                     int workers);

/// What a run hands to both kernels, `workspace` being its memory.
SplitParams split_params(const SplitPlan& plan, std::byte* workspace);

/// A line for the plan's text.
std::string explain_split(const AttentionProblem& problem, const TileParams& tiles, int workers);

}  // namespace strobe::hopper
