// SPDX-License-Identifier: Apache-2.0
// Where everything lies in a CTA's shared memory: evaluated by the host for the launch and by NVRTC for the kernel.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/tile/panel.h"

namespace strobe::hopper::forward {

// O leaves a warp panel by panel through a small ring of its own, so that Q, K and V need not wait for it.
constexpr int kOutputPanelBytes = tile_bytes(kRowsPerWarp, kPanelColumns);
constexpr int output_stages(const Config& c) { return panels(c.head_dim_v) == 1 ? 1 : 2; }

struct SmemPlan {
  int q_bytes = 0;  // of one warpgroup and stage
  int k_bytes = 0;  // of one stage
  int v_bytes = 0;  // of one stage
  int q = 0;        // offsets; tiles are 1024-byte aligned, as the swizzle asks
  int k = 0;
  int v = 0;
  int o = 0;
  int barriers = 0;
  int order = 0;  // sorted schedules: SequenceOrder
  int total_bytes = 0;
};

/// mbarriers: full and empty for each stage of K and V, and of each warpgroup's Q.
constexpr int barrier_count(const Config& c) { return 4 * c.stages + 2 * c.q_stages * c.consumer_warpgroups; }

constexpr SmemPlan smem_plan(const Config& c) {
  SmemPlan plan;
  plan.q_bytes = tile_bytes(kRowsPerWarpgroup, c.head_dim);
  plan.k_bytes = tile_bytes(c.block_n, c.head_dim);
  plan.v_bytes = tile_bytes(c.block_n, c.head_dim_v);
  plan.q = 0;
  plan.k = plan.q + c.consumer_warpgroups * c.q_stages * plan.q_bytes;
  plan.v = plan.k + c.stages * plan.k_bytes;
  plan.o = plan.v + c.stages * plan.v_bytes;
  plan.barriers = plan.o + c.consumer_warpgroups * kWarpsPerWarpgroup * output_stages(c) * kOutputPanelBytes;
  plan.order = plan.barriers + 8 * barrier_count(c);
  plan.total_bytes = plan.order + (c.schedule == Schedule::sorted ? static_cast<int>(sizeof(SequenceOrder)) : 0);
  return plan;
}

}  // namespace strobe::hopper::forward
