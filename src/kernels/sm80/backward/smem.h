// SPDX-License-Identifier: Apache-2.0
// Where everything lies in a CTA's shared memory: evaluated by the host for the launch and by NVRTC for the kernels.
#pragma once

#include "kernels/sm80/backward/config.h"
#include "kernels/sm80/tile/swizzled.h"

namespace strobe::sm80::backward {

template <Config C>
using KTile = Swizzled<block_n(C), halves(C, C.head_dim)>;
template <Config C>
using VTile = Swizzled<block_n(C), halves(C, C.head_dim_v)>;
template <Config C>
using QTile = Swizzled<C.block_m, halves(C, C.head_dim)>;
template <Config C>
using DoTile = Swizzled<C.block_m, halves(C, C.head_dim_v)>;
/// P^T or dS^T: rows are keys. Of float32, which ldmatrix does not transpose, dS: rows are queries.
constexpr bool has_query_rows(const Config& c) { return c.rule.element == Element::fp32; }
template <Config C>
using ScoreTile =
    Swizzled<has_query_rows(C) ? C.block_m : block_n(C), has_query_rows(C) ? halves(C, block_n(C)) : C.block_m>;

constexpr int kWorkBytes = 64;
constexpr int kBarrierBytes = 8;

struct SmemPlan {
  int q_bytes = 0;    // of one stage
  int do_bytes = 0;   // of one stage
  int row_bytes = 0;  // LSE or D of one stage
  int k = 0;          // offsets
  int v = 0;
  int q = 0;
  int d_o = 0;
  int ds = 0;
  int p = 0;  // where warps share keys
  int lse = 0;
  int d_sum = 0;
  int work = 0;  // the item's numbers, which would take registers
  int barriers = 0;
  int total_bytes = 0;
};

constexpr SmemPlan smem_plan(const Config& c) {
  SmemPlan plan;
  plan.q_bytes = c.block_m * halves(c, c.head_dim) * kElementBytes;
  plan.do_bytes = c.block_m * halves(c, c.head_dim_v) * kElementBytes;
  plan.row_bytes = c.block_m * 4;
  const int score_bytes = block_n(c) * halves(c, c.block_m) * kElementBytes;
  plan.v = plan.k + block_n(c) * halves(c, c.head_dim) * kElementBytes;
  plan.q = plan.v + block_n(c) * halves(c, c.head_dim_v) * kElementBytes;
  plan.d_o = plan.q + c.stages * plan.q_bytes;
  plan.ds = plan.d_o + c.stages * plan.do_bytes;
  plan.p = plan.ds + score_bytes;
  plan.lse = plan.p + (c.column_warps > 1 ? score_bytes : 0);
  plan.d_sum = plan.lse + c.stages * plan.row_bytes;
  plan.work = plan.d_sum + c.stages * plan.row_bytes;
  plan.barriers = plan.work + kWorkBytes;
  plan.total_bytes = plan.barriers + kBarrierBytes * (2 + c.stages);
  return plan;
}

/// Shared memory of the kernel that converts dQ: one block of it.
constexpr int finish_smem_bytes(const Config& c) { return c.block_m * halves(c, c.head_dim) * kElementBytes; }

}  // namespace strobe::sm80::backward
