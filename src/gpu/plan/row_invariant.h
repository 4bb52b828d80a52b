// SPDX-License-Identifier: Apache-2.0
// Row-invariant forwards: which calls there are, and how long the segments of a row's keys are.
#pragma once

#include <cstdint>
#include <string>

#include "call/problem.h"
#include "strobe/status.h"

namespace strobe::gpu {

/// Unsupported where a row-invariant forward has an option that the kernels lack.
Status check_row_invariant(const AttentionProblem& problem);

/// Blocks of `block_n` keys in a segment; 0: no row has more than one segment. `widest`: head_dim as compiled.
int segment_blocks(const AttentionProblem& problem, int widest, int block_n);

/// Segments of a row's keys, at most, each of so many; 0 where they are one.
std::int64_t segments_of(const AttentionProblem& problem, int segment_keys);

/// A line for the plan's text, without its end.
std::string explain_row_invariant(int block_n, int segment_blocks);

}  // namespace strobe::gpu
