// SPDX-License-Identifier: Apache-2.0
// Where everything lies in a CTA's shared memory: evaluated by the host for the launch and by NVRTC for the kernel.
#pragma once

#include "kernels/scheduler/split.h"
#include "kernels/sm80/forward/config.h"
#include "kernels/sm80/tile/swizzled.h"

namespace strobe::sm80::forward {

template <Config C>
using QTile = Swizzled<C.rows_per_warp, halves(C, C.head_dim)>;  // of one warp
template <Config C>
using OTile = Swizzled<C.rows_per_warp, halves(C, C.head_dim_v)>;
template <Config C>
using KTile = Swizzled<C.block_n, halves(C, C.head_dim)>;
template <Config C>
using VTile = Swizzled<C.block_n, halves(C, C.head_dim_v)>;

// Of sliced tiles: a slice of K or V, and the probabilities of a block that warps with the same rows share.
template <Config C>
using SliceTile = Swizzled<C.block_n, C.slice_columns>;
template <Config C>
using PTile = Swizzled<C.rows_per_warp, C.block_n>;

/// Columns of a block as it is copied, in 16 bits: pairs of stored elements fill whole panels.
constexpr int copied_columns(const Config& c, int head_dim) {
  constexpr int kPanel = 32;
  return is_stored(c) ? (head_dim / 2 + kPanel - 1) / kPanel * kPanel : halves(c, head_dim);
}
template <Config C>
using CopiedKTile = Swizzled<C.block_n, copied_columns(C, C.head_dim)>;
template <Config C>
using CopiedVTile = Swizzled<C.block_n, copied_columns(C, C.head_dim_v)>;

/// Where a sequence's keys and values begin.
struct KeyValueRows {
  const unsigned short* keys;
  const unsigned short* values;
};

constexpr int kTileWorkBytes = 96;  // TileWork

struct SmemPlan {
  int warp_bytes = 0;  // a warp's rows of Q, which all groups read, and when they are done with them, of O
  int k_bytes = 0;     // of one stage, as K and V are stored; sliced tiles: of a slice of either
  int v_bytes = 0;
  int wide_k_bytes = 0;  // of a converted block
  int wide_v_bytes = 0;
  int k = 0;  // offsets
  int v = 0;
  int wide_k = 0;  // a group's converted blocks
  int wide_v = 0;
  int sums = 0;           // where K and V were: O of all groups but the first
  int maxima = 0;         // and all groups' maxima and sums
  int probabilities = 0;  // sliced tiles: PTiles, and numbers of rows that their warps exchange, a float each
  int row_numbers = 0;
  int rows = 0;     // KeyValueRows, for each warp its own
  int factors = 0;  // stored operands: what each row of Q was divided by
  int split = 0;    // split schedules: SplitWork
  int work = 0;     // variants that keep it: TileWork
  int total_bytes = 0;
};

constexpr SmemPlan smem_plan(const Config& c) {
  SmemPlan plan;
  const int widest = c.head_dim > c.head_dim_v ? c.head_dim : c.head_dim_v;
  plan.warp_bytes = c.rows_per_warp * halves(c, widest) * kElementBytes;
  plan.k_bytes = c.block_n * (sliced(c) ? c.slice_columns : copied_columns(c, c.head_dim)) * kElementBytes;
  plan.v_bytes = sliced(c) ? 0 : c.block_n * copied_columns(c, c.head_dim_v) * kElementBytes;
  plan.wide_k_bytes = converts(c) ? c.block_n * c.head_dim * kElementBytes : 0;
  plan.wide_v_bytes = converts(c) ? c.block_n * c.head_dim_v * kElementBytes : 0;
  plan.k = row_warps(c) * plan.warp_bytes;
  plan.v = plan.k + c.key_groups * c.stages * plan.k_bytes;
  plan.wide_k = plan.v + c.key_groups * c.stages * plan.v_bytes;
  plan.wide_v = plan.wide_k + c.key_groups * plan.wide_k_bytes;
  plan.probabilities = plan.wide_v + c.key_groups * plan.wide_v_bytes;
  plan.row_numbers = plan.probabilities + (sliced(c) ? block_m(c) * c.block_n * kElementBytes : 0);
  plan.rows = plan.row_numbers + (sliced(c) ? block_m(c) * c.column_warps * static_cast<int>(sizeof(float)) : 0);
  if (c.key_groups > 1) {
    constexpr int kFloats = 3;  // maximum, sum and largest score, of each of a thread's rows
    plan.sums = plan.k;
    plan.maxima = plan.sums + (c.key_groups - 1) * block_m(c) * c.head_dim_v * static_cast<int>(sizeof(float));
    const int end = plan.maxima + threads_per_block(c) * fragments(c) * 2 * kFloats * static_cast<int>(sizeof(float));
    plan.rows = end > plan.rows ? end : plan.rows;
  }
  plan.factors = plan.rows + c.warps * static_cast<int>(sizeof(KeyValueRows));
  plan.split = plan.factors + (c.stored_operands ? block_m(c) * static_cast<int>(sizeof(float)) : 0);
  plan.work = plan.split + (splits(c) ? static_cast<int>(sizeof(SplitWork)) : 0);
  plan.total_bytes = plan.work;
  if (c.keeps_work) {
    constexpr int kAlignment = 16;
    plan.total_bytes += kTileWorkBytes;
    plan.total_bytes = (plan.total_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return plan;
}

}  // namespace strobe::sm80::forward
