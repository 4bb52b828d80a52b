// SPDX-License-Identifier: Apache-2.0
// Parameters and shared memory of the kernel that computes the bias's gradient. Plain constexpr C++, shared by host and
// device.
#pragma once

#include "kernels/score/capture_sums.h"
#include "kernels/sm90/backward/smem.h"
#include "kernels/sm90/tile/panel.h"

namespace strobe::sm90::backward {

struct BiasGradientSmemPlan {
  int score_stages = 1;     // of Q, K and LSE
  int gradient_stages = 1;  // of dO, V and D
  int q_bytes = 0;          // of a stage
  int do_bytes = 0;         // of a stage
  int k_bytes = 0;          // of a stage and a warpgroup
  int v_bytes = 0;          // of a stage and a warpgroup
  int k = 0;
  int v = 0;
  int q = 0;
  int d_o = 0;
  int bias = 0;
  int lse = 0;
  int d_sum = 0;
  int text = 0;  // of each warp
  int barriers = 0;
  int total_bytes = 0;
};

/// The bias of a warpgroup's tile.
constexpr int kept_bias_bytes(const Config& c) { return block_n(c) * c.block_m * (c.rule.bias_float32 ? 4 : 2); }

/// What a warpgroup has beside its operands: its bias, or where diagonals of captures' gradients are summed.
constexpr int kept_bytes(const Config& c) {
  return c.captures ? kWarpsPerWarpgroup * 4 * score::diagonal_floats(c.block_m) : kept_bias_bytes(c);
}

inline constexpr int kBiasGradientBarrierBytes = 128;

constexpr BiasGradientSmemPlan bias_gradient_smem_plan_of(const Config& c, int score_stages, int gradient_stages) {
  BiasGradientSmemPlan plan;
  plan.score_stages = score_stages;
  plan.gradient_stages = gradient_stages;
  plan.q_bytes = tile_bytes(c.block_m, c.head_dim);
  plan.do_bytes = tile_bytes(c.block_m, c.head_dim_v);
  plan.k_bytes = tile_bytes(block_n(c), c.head_dim);
  plan.v_bytes = tile_bytes(block_n(c), c.head_dim_v);
  plan.v = plan.k + score_stages * kKeyWarpgroups * plan.k_bytes;
  plan.q = plan.v + gradient_stages * kKeyWarpgroups * plan.v_bytes;
  plan.d_o = plan.q + score_stages * plan.q_bytes;
  plan.bias = plan.d_o + gradient_stages * plan.do_bytes;
  plan.lse = plan.bias + kKeyWarpgroups * kept_bytes(c);
  plan.d_sum = plan.lse + score_stages * 4 * c.block_m;
  plan.text = plan.d_sum + gradient_stages * 4 * c.block_m;
  plan.barriers = plan.text + kKeyWarpgroups * kWarpsPerWarpgroup * text_bytes(c);
  plan.total_bytes = plan.barriers + kBiasGradientBarrierBytes;
  return plan;
}

/// Where everything lies in shared memory. What is needed first has two stages first, where they fit.
constexpr BiasGradientSmemPlan bias_gradient_smem_plan(const Config& c) {
  const BiasGradientSmemPlan both = bias_gradient_smem_plan_of(c, 2, 2);
  if (both.total_bytes <= kMaxSmemBytes) return both;
  const BiasGradientSmemPlan scores = bias_gradient_smem_plan_of(c, 2, 1);
  if (scores.total_bytes <= kMaxSmemBytes) return scores;
  return bias_gradient_smem_plan_of(c, 1, 1);
}

inline constexpr int kBiasGradientThreads = kWarpgroupSize * (1 + kKeyWarpgroups);

/// Tiles along the keys, each of the two warpgroups' blocks.
constexpr int bias_key_tiles(int n_blocks) { return (n_blocks + kKeyWarpgroups - 1) / kKeyWarpgroups; }

}  // namespace strobe::sm90::backward
