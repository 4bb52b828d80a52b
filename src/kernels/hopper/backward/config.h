// SPDX-License-Identifier: Apache-2.0
// One variant of the backward kernel is one value of Config, its only template argument. Plain constexpr C++:
// the host's compiler reads it for the launch and NVRTC for the kernel.
#pragma once

#include "kernels/hopper/tile/warpgroup.h"
#include "kernels/score/rule.h"

namespace strobe::hopper::backward {

struct Config {
  ScoreRule rule;
  int head_dim = 128;           // of Q and K as compiled; narrower heads are padded by TMA's bounds
  int head_dim_v = 128;         // of V, O and dO, likewise
  int consumer_warpgroups = 2;  // each owns 64 keys
  int block_m = 64;             // queries per step
  int q_stages = 3;             // of Q and the LSE of its rows
  int do_stages = 2;            // of dO and the D of its rows
  int kv_stages = 1;            // of K and V: with 2, the next tile's arrive while this one's are in use

  // dQ leaves through shared memory and a bulk reduction, not from registers: it waits for nobody, and takes more of
  // shared memory's time.
  bool staged_dq = true;
  // Warpgroups take turns with S and dP: what one computes of them is done under the products of the other.
  bool turns = true;
  // Of two warpgroups, one computes P and dV and the other dS and dK of the same 64 keys: for heads whose dK and dV do
  // not fit one warpgroup's registers. dS goes to global memory, and another kernel multiplies it with K.
  bool by_roles = false;
  bool persistent = false;  // one CTA per multiprocessor walks over the tiles

  bool operator==(const Config&) const = default;
};

constexpr int block_n(const Config& c) { return kRowsPerWarpgroup * (c.by_roles ? 1 : c.consumer_warpgroups); }

constexpr int threads_per_block(const Config& c) { return kWarpgroupSize * (c.consumer_warpgroups + 1); }

/// dQ of one step is shared out among the warpgroups: by 64 rows where a step has as many of them, else by columns.
constexpr bool query_gradient_by_rows(const Config& c) {
  return c.block_m == kRowsPerWarpgroup * c.consumer_warpgroups;
}
constexpr int query_gradient_columns(const Config& c) {
  return query_gradient_by_rows(c) ? c.head_dim : c.head_dim / c.consumer_warpgroups;
}

}  // namespace strobe::hopper::backward
