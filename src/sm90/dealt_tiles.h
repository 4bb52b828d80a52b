// SPDX-License-Identifier: Apache-2.0
// Which CTA of a forward computes which tile, where the host knows how long tiles take.
#pragma once

#include <memory>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/visible_keys.h"
#include "sm90/forward_plan.h"
#include "sm90/forward_tiles.h"

namespace strobe::sm90 {

/// Tiles of one sequence and head.
inline std::int64_t m_tiles_of(const AttentionProblem& problem, const forward::Config& config) {
  return ceil_div(packed_rows(problem, config), block_m(config));
}

/// How long tile `m` of a head takes, in blocks of keys that all of its warpgroups work on, its start and end included.
double tile_cost(const AttentionProblem& problem, const VisibleKeys& visible, const forward::Config& config, int m);

/// `plan` has its tiles and workers.
std::shared_ptr<const TileList> deal_tiles(const AttentionProblem& problem, const DeviceShape& shape,
                                           const ForwardPlan& plan);

}  // namespace strobe::sm90
