// SPDX-License-Identifier: Apache-2.0
// How many query heads an item of the sm90 backward has (kernels/sm90/backward/config.h, shares_keys).
#pragma once

#include <cstdint>

#include "call/problem.h"
#include "gpu/plan/device.h"
#include "kernels/sm90/backward/config.h"

namespace strobe::sm90 {

/// Query heads of an item, at most: all that read a key head, or some of them, so that several items share a block of
/// keys.
struct PartHeads {
  std::int64_t count = 1;
};

/// Whether items may share blocks of keys: not where each query head sees its own blocks, of which a part may see none,
/// and not without queries.
bool takes_parts(const AttentionProblem& problem, const backward::Config& config);

/// The planner's choice. `wanted` heads, if that is not 0 and a part of so many may be.
PartHeads part_heads(const AttentionProblem& problem, const gpu::DeviceShape& shape, const backward::Config& config,
                     int wanted = 0);

/// As many as that where the problem takes parts, else all.
PartHeads fitting_heads(const AttentionProblem& problem, const backward::Config& config, PartHeads wanted);

/// Items that share a block of keys.
std::int64_t key_parts(const AttentionProblem& problem, PartHeads heads);

/// Steps that pass before and after an item's own, and for its sums of dK and dV; where items share keys, in float32.
double item_overhead(const backward::Config& config, bool shares_keys);

/// The problem whose key heads are these parts, to plan sections of.
AttentionProblem with_parts_as_heads(const AttentionProblem& problem, PartHeads heads);

}  // namespace strobe::sm90
