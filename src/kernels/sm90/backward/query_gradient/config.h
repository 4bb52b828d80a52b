// SPDX-License-Identifier: Apache-2.0
// Variants and shared memory of the kernel that computes dQ after a backward by roles. Plain constexpr C++, shared by
// host and device.
#pragma once

#include "kernels/score/rule.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/tile/panel.h"
#include "kernels/sm90/tile/warpgroup.h"

namespace strobe::sm90::backward {

struct QueryGradientConfig {
  ScoreRule rule;        // the whole of the rule that the backward was compiled for: some rows are computed again
  int head_dim = 256;    // columns of dQ that a CTA computes
  int column_parts = 1;  // CTAs that have the same queries and other columns
  int block_m = 64;      // queries per step of the kernel that wrote dS
  int consumer_warpgroups = 3;  // each owns 64 queries, all in one row of a block mask
  int stages = 4;
  bool debug = false;  // as Config's

  bool operator==(const QueryGradientConfig&) const = default;
};

struct QueryGradientSmemPlan {
  int k = 0;  // within a stage; dS of warpgroup w is at w * kScoreTileBytes
  int stage_bytes = 0;
  int barriers = 0;
  int total_bytes = 0;
};

constexpr QueryGradientSmemPlan smem_plan(const QueryGradientConfig& c) {
  QueryGradientSmemPlan plan;
  plan.k = c.consumer_warpgroups * kScoreTileBytes;
  plan.stage_bytes = plan.k + tile_bytes(kScoreTile, c.head_dim);
  plan.barriers = c.stages * plan.stage_bytes;
  plan.total_bytes = plan.barriers + 2 * 8 * c.stages;
  return plan;
}

// Columns of one WGMMA: more accumulators would pass what a thread of three warpgroups is launched with.
constexpr int wgmma_columns(const QueryGradientConfig& c) { return c.head_dim < 256 ? c.head_dim : 128; }
constexpr int wgmma_parts(const QueryGradientConfig& c) { return c.head_dim / wgmma_columns(c); }

constexpr int threads_per_block(const QueryGradientConfig& c) { return kWarpgroupSize * (c.consumer_warpgroups + 1); }

/// CTAs of one query head, whose longest sequence has m_blocks blocks.
constexpr int query_groups(const QueryGradientConfig& c, int m_blocks) {
  return (m_blocks * (c.block_m / kScoreTile) + c.consumer_warpgroups - 1) / c.consumer_warpgroups;
}

}  // namespace strobe::sm90::backward
