// SPDX-License-Identifier: Apache-2.0
// Parameters and shared memory of the kernel that computes the bias's gradient. Plain constexpr C++, shared by host and
// device.
#pragma once

#include "kernels/hopper/backward/config.h"
#include "kernels/hopper/tile/panel.h"

namespace strobe::hopper::backward {

/// The gradient: [batch or 1, query heads or 1, seqlen_q, seqlen_k].
struct BiasGradientParams {
  float* data;
  long long batch_stride, head_stride, row_stride;  // elements
  int per_batch, per_head;                          // 0: all share it
  int heads;                                        // query heads or 1
};

struct BiasGradientSmemPlan {
  int q_bytes = 0;
  int do_bytes = 0;
  int k_bytes = 0;  // of a warpgroup
  int v_bytes = 0;  // of a warpgroup
  int k = 0;
  int v = 0;
  int q = 0;
  int d_o = 0;
  int bias = 0;
  int lse = 0;
  int d_sum = 0;
  int barriers = 0;
  int total_bytes = 0;
};

/// The bias of a warpgroup's tile, as its threads keep it.
constexpr int kept_bias_bytes(const Config& c) { return block_n(c) * c.block_m * (c.rule.bias_float32 ? 4 : 2); }

constexpr BiasGradientSmemPlan bias_gradient_smem_plan(const Config& c) {
  BiasGradientSmemPlan plan;
  plan.q_bytes = tile_bytes(c.block_m, c.head_dim);
  plan.do_bytes = tile_bytes(c.block_m, c.head_dim_v);
  plan.k_bytes = tile_bytes(block_n(c), c.head_dim);
  plan.v_bytes = tile_bytes(block_n(c), c.head_dim_v);
  plan.v = plan.k + kKeyWarpgroups * plan.k_bytes;
  plan.q = plan.v + kKeyWarpgroups * plan.v_bytes;
  plan.d_o = plan.q + plan.q_bytes;
  plan.bias = plan.d_o + plan.do_bytes;
  plan.lse = plan.bias + kKeyWarpgroups * kept_bias_bytes(c);
  plan.d_sum = plan.lse + 4 * c.block_m;
  plan.barriers = plan.d_sum + 4 * c.block_m;
  plan.total_bytes = plan.barriers + 4 * 8;
  return plan;
}

inline constexpr int kBiasGradientThreads = kWarpgroupSize * (1 + kKeyWarpgroups);

/// Tiles along the keys, each of the two warpgroups' blocks.
constexpr int bias_key_tiles(int n_blocks) { return (n_blocks + kKeyWarpgroups - 1) / kKeyWarpgroups; }

}  // namespace strobe::hopper::backward
