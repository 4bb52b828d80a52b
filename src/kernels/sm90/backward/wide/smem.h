// SPDX-License-Identifier: Apache-2.0
// Where everything lies in the shared memory of a CTA of a pair: the same in both.
#pragma once

#include "kernels/sm90/backward/smem.h"

namespace strobe::sm90::backward {

/// The CTAs of a pair, by their rank in the cluster.
enum class WideRole { probabilities, gradients };  // P and dV; dS and dK

/// Columns of the product that makes scores, and of the sums.
constexpr int score_columns(const Config& c, WideRole role) {
  return role == WideRole::probabilities ? c.head_dim : c.head_dim_v;
}
constexpr int sum_columns(const Config& c, WideRole role) {
  return role == WideRole::probabilities ? c.head_dim_v : c.head_dim;
}

inline constexpr int kSumWarpgroups = 2;  // each holds half of the columns of the sums
constexpr int half_columns(const Config& c, WideRole role) { return sum_columns(c, role) / kSumWarpgroups; }

/// Columns of K or V that lie in registers, and those that stay in shared memory.
constexpr int register_columns(const Config& c, WideRole role) {
  return c.register_columns < score_columns(c, role) ? c.register_columns : score_columns(c, role);
}
constexpr int resident_columns(const Config& c, WideRole role) {
  return score_columns(c, role) - register_columns(c, role);
}

struct WideSmemPlan {
  int panel_bytes = 0;   // of a stage: 64 rows by 64 columns
  int piece_bytes = 0;   // of a stage: 64 rows by the columns of one warpgroup's sums
  int scores_bytes = 0;  // of a block of P or dS
  int rows_bytes = 0;    // of LSE or D of a step
  int resident = 0;      // offsets; tiles are 1024-byte aligned, as the swizzle asks
  int panels = 0;
  int pieces = 0;
  int scores = 0;
  int rows = 0;
  int handed = 0;
  int barriers = 0;
  int total_bytes = 0;
};

inline constexpr int kRowStages = 2;

/// mbarriers: full and empty for each stage; K or V full.
constexpr int wide_barrier_count(const Config& c) {
  return 2 * (c.q_stages + c.do_stages + c.ds_stages + c.p_stages + kRowStages) + 1;
}

constexpr WideSmemPlan wide_smem_plan(const Config& c) {
  constexpr WideRole kFirst = WideRole::probabilities;
  constexpr WideRole kSecond = WideRole::gradients;
  const auto larger = [](int a, int b) { return a > b ? a : b; };
  WideSmemPlan plan;
  plan.panel_bytes = tile_bytes(kRowsPerWarpgroup, kPanelColumns);
  plan.piece_bytes = tile_bytes(kRowsPerWarpgroup, larger(half_columns(c, kFirst), half_columns(c, kSecond)));
  plan.scores_bytes = tile_bytes(block_n(c), c.block_m);
  plan.rows_bytes = (has_hi_lo_lse(c) ? kHiLoBytes : 4) * c.block_m;
  plan.resident = 0;
  plan.panels = tile_bytes(kRowsPerWarpgroup, larger(resident_columns(c, kFirst), resident_columns(c, kSecond)));
  plan.pieces = plan.panels + c.q_stages * plan.panel_bytes;
  plan.scores = plan.pieces + c.do_stages * plan.piece_bytes;
  plan.rows = plan.scores + c.ds_stages * plan.scores_bytes;
  plan.handed = plan.rows + kRowStages * plan.rows_bytes;
  plan.barriers = plan.handed + c.p_stages * plan.scores_bytes;
  plan.total_bytes = plan.barriers + 8 * wide_barrier_count(c);
  return plan;
}

/// Of the kernel that computes dK and dV, whatever its design.
constexpr int main_smem_bytes(const Config& c) {
  return c.wide ? wide_smem_plan(c).total_bytes : smem_plan(c).total_bytes;
}

}  // namespace strobe::sm90::backward
