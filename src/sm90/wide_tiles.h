// SPDX-License-Identifier: Apache-2.0
// Heads of more than 256 columns: widths, tiles and fields of the wide loop.
#pragma once

#include "call/problem.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// What the other loops hold of a row.
inline constexpr int kMostNarrowColumns = 256;

inline bool has_wide_heads(const AttentionProblem& problem) {
  return problem.head_dim > kMostNarrowColumns || problem.head_dim_v > kMostNarrowColumns;
}

/// `call` with the columns that a wide loop is compiled for.
forward::Config with_wide_columns(const forward::Config& call, const AttentionProblem& problem);

/// `call`, whose columns are wide, with its tiles.
forward::Config with_wide_tiles(const forward::Config& call);

/// Wide tiles, whose schedule is known, with what registers and shared memory leave.
forward::Config completed_wide(const forward::Config& tiles);

}  // namespace strobe::sm90
