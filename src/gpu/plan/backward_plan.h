// SPDX-License-Identifier: Apache-2.0
// What the plans of a backward on all GPU engines have in common.
#pragma once

#include <cstdint>
#include <string>

#include "call/problem.h"
#include "kernels/score/backward_params.h"

namespace strobe::gpu {

/// The problem without its queries where there are no query heads: keys get zero gradients.
AttentionProblem without_headless_queries(AttentionProblem problem);

/// Sequences, and one more where q or k is packed: rows behind the last sequence.
std::int64_t backward_batch(const AttentionProblem& problem);

/// Blocks of the longest sequence's queries or keys; at least 1, as kernels divide by them.
std::int64_t backward_blocks(std::int64_t seqlen, int block);

/// Planes of a bias: those that sequences or heads share count once.
std::int64_t bias_planes(const AttentionProblem& problem);

/// CTAs of the step that finds rows of a large LSE, one for each group.
int large_row_ctas(const AttentionProblem& problem, const BackwardParams& params);

/// What a plan knows of a kernel's parameters; blocks of block_m queries and block_n keys.
BackwardParams planned_params(const AttentionProblem& problem, int block_m, int block_n);

/// A line for the plan's text. `head_dim`, `head_dim_v`: as compiled.
std::string explain_tiles(const AttentionProblem& problem, int block_n, int block_m, int head_dim, int head_dim_v);

}  // namespace strobe::gpu
