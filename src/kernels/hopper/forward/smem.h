// SPDX-License-Identifier: Apache-2.0
// Where everything lies in a CTA's shared memory: evaluated by the host for the launch and by NVRTC for the kernel.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/tile/panel.h"

namespace strobe::hopper::forward {

// O leaves a warp panel by panel through a small ring of its own, so that Q, K and V need not wait for it.
constexpr int kOutputPanelBytes = tile_bytes(kRowsPerWarp, kPanelColumns);
// 8-bit operands: keys that share a scale of K, and what a block's scales take.
constexpr int kKeysPerScale = 32;
constexpr int scale_bytes(const Config& c) {
  return eight_bit(c) ? 8 * c.block_n + 4 * (c.block_n / kKeysPerScale) : 0;
}

/// V lies as it does in memory: its rows are keys, or 8-bit columns.
constexpr int value_tile_bytes(const Config& c) {
  return eight_bit(c) ? c.head_dim_v * panels_of_bytes(c.block_n) * kPanelRowBytes
                      : tile_bytes(c.block_n, c.head_dim_v);
}

constexpr int output_stages(const Config& c) { return panels(c.head_dim_v) == 1 ? 1 : 2; }

struct SmemPlan {
  int q_bytes = 0;  // of one warpgroup and stage
  int k_bytes = 0;  // of one stage
  int v_bytes = 0;  // of one stage
  int q = 0;        // offsets; tiles are 1024-byte aligned, as the swizzle asks
  int k = 0;
  int v = 0;
  int o = 0;
  int scales = 0;  // 8-bit operands: a stage goes with one of V
  int barriers = 0;
  int order = 0;  // sorted schedules: SequenceOrder
  int total_bytes = 0;
};

/// mbarriers: full and empty for each stage of K and V, and of each warpgroup's Q.
constexpr int barrier_count(const Config& c) { return 4 * c.stages + 2 * c.q_stages * c.consumer_warpgroups; }

constexpr SmemPlan smem_plan(const Config& c) {
  SmemPlan plan;
  const int row_bytes = panels_of_bytes(c.head_dim * operand_bytes(c)) * kPanelRowBytes;
  plan.q_bytes = kRowsPerWarpgroup * row_bytes;
  plan.k_bytes = c.block_n * row_bytes;
  plan.v_bytes = value_tile_bytes(c);
  plan.q = 0;
  plan.k = plan.q + c.consumer_warpgroups * c.q_stages * plan.q_bytes;
  plan.v = plan.k + c.stages * plan.k_bytes;
  plan.o = plan.v + c.stages * plan.v_bytes;
  plan.scales = plan.o + c.consumer_warpgroups * kWarpsPerWarpgroup * output_stages(c) * kOutputPanelBytes;
  plan.barriers = plan.scales + c.stages * scale_bytes(c);
  plan.order = plan.barriers + 8 * barrier_count(c);
  plan.total_bytes = plan.order + (c.schedule == Schedule::sorted ? static_cast<int>(sizeof(SequenceOrder)) : 0);
  return plan;
}

}  // namespace strobe::hopper::forward
