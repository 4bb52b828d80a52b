// SPDX-License-Identifier: Apache-2.0
// Where everything lies in a CTA's shared memory: evaluated by the host for the launch and by NVRTC for the kernel.
#pragma once

#include "kernels/math/hi_lo.h"
#include "kernels/score/modifiers/text.h"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/tile/panel.h"

namespace strobe::sm90::backward {

struct SmemPlan {
  int q_bytes = 0;   // of one stage
  int do_bytes = 0;  // of one stage
  int k_bytes = 0;
  int v_bytes = 0;
  int ds_bytes = 0;   // of one stage
  int lse_bytes = 0;  // of one stage
  int d_bytes = 0;    // of one stage
  int k = 0;          // offsets; tiles are 1024-byte aligned, as the swizzle asks
  int v = 0;
  int q = 0;
  int d_o = 0;
  int ds = 0;
  int dq = 0;  // staged
  int p = 0;   // by roles: probabilities on their way from one warpgroup to the other
  int bias = 0;
  int lse = 0;
  int d_sum = 0;
  int query_state = 0;
  int text = 0;  // of each warp that computes P
  int barriers = 0;
  int total_bytes = 0;
};

// Of dS^T: written for the step at hand while the one before may still be read.
inline constexpr int kScoreGradientStages = 2;

// dQ leaves in such pieces: 32 accumulators of each thread of a warpgroup.
inline constexpr int kQueryGradientPiece = 32;
inline constexpr int kQueryGradientPieceBytes = 4 * kQueryGradientPiece * kWarpgroupSize;
// Where dQ's sums are added to in order.
inline constexpr int kSenders = 3;
inline constexpr int kQueryStateBytes = 128;  // joint/query_gradient_semaphore.h

/// mbarriers: full and empty for each stage of Q, dO and what the warpgroups hand to each other; two for each sender
/// and staged dQ's empty; K full and V full.
constexpr int barrier_count(const Config& c) {
  return 2 * (c.q_stages + c.do_stages + kScoreGradientStages + kSenders + c.bias_stages) + 3;
}

/// The bias of a step lies as Q does: panels of 128 bytes of keys x block_m queries, swizzled, those of a warpgroup's
/// 64 keys together.
constexpr int bias_panels(const Config& c) { return c.rule.bias_float32 ? 2 : 1; }  // of 64 keys
constexpr int warpgroup_bias_bytes(const Config& c) { return bias_panels(c) * c.block_m * kPanelRowBytes; }
constexpr int bias_bytes(const Config& c) { return block_n(c) / kRowsPerWarpgroup * warpgroup_bias_bytes(c); }

/// Whether values that a text needs are found once for rows, columns and diagonals of a warp's block.
constexpr bool keeps_text(const Config& c) {
  return has_text(c.rule) && c.head_dim <= kMostTextColumns && c.head_dim_v <= kMostTextColumns;
}

/// Of a warp that computes P.
constexpr int text_bytes(const Config& c) {
  return keeps_text(c) ? 4 * text_words(c.rule.text, c.rule.text.query_values, c.rule.text.key_values, c.block_m, 1)
                       : 0;
}

constexpr SmemPlan smem_plan(const Config& c) {
  SmemPlan plan;
  plan.q_bytes = tile_bytes(c.block_m, c.head_dim);
  plan.do_bytes = tile_bytes(c.block_m, c.head_dim_v);
  plan.k_bytes = tile_bytes(block_n(c), c.head_dim);
  plan.v_bytes = tile_bytes(block_n(c), c.head_dim_v);
  plan.ds_bytes = tile_bytes(block_n(c), c.block_m);
  plan.lse_bytes = (has_hi_lo_lse(c) ? kHiLoBytes : 4) * c.block_m;
  plan.d_bytes = (has_hi_lo_d(c) ? kHiLoBytes : 4) * c.block_m;
  plan.k = 0;
  plan.v = plan.k + plan.k_bytes;
  plan.q = plan.v + plan.v_bytes;
  plan.d_o = plan.q + c.q_stages * plan.q_bytes;
  plan.ds = plan.d_o + c.do_stages * plan.do_bytes;
  plan.p = plan.ds + c.ds_stages * plan.ds_bytes;
  plan.bias = plan.p + (c.by_roles ? c.p_stages * plan.ds_bytes : 0);
  plan.dq = plan.bias + c.bias_stages * bias_bytes(c);
  plan.lse = plan.dq + (c.staged_dq && !c.by_roles ? kQueryGradientPieceBytes : 0);
  plan.d_sum = plan.lse + c.q_stages * plan.lse_bytes;
  plan.query_state = plan.d_sum + c.do_stages * plan.d_bytes;
  plan.text = plan.query_state + kQueryStateBytes;
  plan.barriers = plan.text + block_n(c) / kRowsPerWarp * text_bytes(c);
  plan.total_bytes = plan.barriers + 8 * barrier_count(c);
  if (c.debug) {  // memcheck takes rows of eight columns, which WGMMA reads twice, for rows of sixteen
    const int after_lse = plan.lse + (c.q_stages + 1) * plan.lse_bytes;
    const int after_d = plan.d_sum + (c.do_stages + 1) * plan.d_bytes;
    const int read = after_lse > after_d ? after_lse : after_d;
    plan.total_bytes = plan.total_bytes > read ? plan.total_bytes : read;
  }
  return plan;
}

}  // namespace strobe::sm90::backward
