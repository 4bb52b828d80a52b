// SPDX-License-Identifier: Apache-2.0
// One variant of the forward kernel is one value of Config: a structural type, so that it is the kernel's only template
// argument, printed, compared and hashed by its fields. Plain constexpr C++ without std headers: the host's compiler
// reads it for the launch and NVRTC for the kernel.
#pragma once

#include "kernels/ampere/tile/warp.h"
#include "kernels/score/rule.h"

namespace strobe::ampere::forward {

struct Config {
  ScoreRule rule;
  int head_dim = 128;      // of Q and K as compiled: 32, 64, 96, 128, 192 or 256; narrower heads are padded by zeros
  int head_dim_v = 128;    // of V and O, likewise
  int warps = 4;           // each owns its rows of Q, and sees all keys
  int rows_per_warp = 32;  // 16, or 32: then each operand that is read of K and V serves two products
  int block_n = 64;        // keys per step
  int stages = 2;          // of K and of V; with 1, each arrives under the product with the other
  bool q_in_registers = false;  // else read from shared memory in each step
  int ctas_per_sm = 2;          // resident CTAs: the softmax of one runs under the products of the other
  bool debug = false;           // shared memory starts as NaN

  bool operator==(const Config&) const = default;
};

constexpr int block_m(const Config& c) { return c.warps * c.rows_per_warp; }
constexpr int threads_per_block(const Config& c) { return c.warps * kWarpSize; }
constexpr int fragments(const Config& c) { return c.rows_per_warp / kFragmentRows; }

}  // namespace strobe::ampere::forward
