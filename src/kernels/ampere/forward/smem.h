// SPDX-License-Identifier: Apache-2.0
// Where everything lies in a CTA's shared memory: evaluated by the host for the launch and by NVRTC for the kernel.
#pragma once

#include "kernels/ampere/forward/config.h"
#include "kernels/ampere/tile/swizzled.h"

namespace strobe::ampere::forward {

template <Config C>
using QTile = Swizzled<C.rows_per_warp, C.head_dim>;  // of one warp
template <Config C>
using OTile = Swizzled<C.rows_per_warp, C.head_dim_v>;
template <Config C>
using KTile = Swizzled<C.block_n, C.head_dim>;
template <Config C>
using VTile = Swizzled<C.block_n, C.head_dim_v>;

/// Where a sequence's keys and values begin.
struct KeyValueRows {
  const unsigned short* keys;
  const unsigned short* values;
};

struct SmemPlan {
  int warp_bytes = 0;  // a warp's rows of Q, and when it is done with them, of O
  int k_bytes = 0;     // of one stage
  int v_bytes = 0;     // of one stage
  int k = 0;           // offsets
  int v = 0;
  int rows = 0;  // KeyValueRows, for each warp its own
  int total_bytes = 0;
};

constexpr SmemPlan smem_plan(const Config& c) {
  SmemPlan plan;
  plan.warp_bytes = c.rows_per_warp * (c.head_dim > c.head_dim_v ? c.head_dim : c.head_dim_v) * kElementBytes;
  plan.k_bytes = c.block_n * c.head_dim * kElementBytes;
  plan.v_bytes = c.block_n * c.head_dim_v * kElementBytes;
  plan.k = c.warps * plan.warp_bytes;
  plan.v = plan.k + c.stages * plan.k_bytes;
  plan.rows = plan.v + c.stages * plan.v_bytes;
  plan.total_bytes = plan.rows + c.warps * static_cast<int>(sizeof(KeyValueRows));
  return plan;
}

}  // namespace strobe::ampere::forward
