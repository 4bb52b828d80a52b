// SPDX-License-Identifier: Apache-2.0
// The workspace of a backward: parts one behind another.
#pragma once

#include <cstddef>

#include "call/checked.h"
#include "call/problem.h"
#include "kernels/score/backward_params.h"

namespace strobe::gpu {

/// Where the parts begin that every family has, in bytes: numbers of each query row, and rows of a large LSE.
struct BackwardWorkspace {
  std::size_t lse_log2 = 0;
  std::size_t d_sum = 0;
  std::size_t row_max = 0;
  std::size_t large_rows = 0;
  std::size_t total_bytes = 0;

  /// Appends a part and returns where it begins.
  std::size_t take(Checked bytes);

  /// Appends those above, of blocks of `block_m` rows; returns the bytes of four a row.
  Checked take_rows(const AttentionProblem& problem, const BackwardParams& params, int block_m);
};

/// Gives a run's parameters the addresses of those parts.
void set_rows(const BackwardWorkspace& offsets, std::byte* workspace, BackwardParams& params);

}  // namespace strobe::gpu
