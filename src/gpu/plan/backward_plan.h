// SPDX-License-Identifier: Apache-2.0
// What the plans of a backward have in common in all families.
#pragma once

#include <cstdint>
#include <string>

#include "call/problem.h"
#include "gpu/plan/device.h"
#include "kernels/score/backward_params.h"

namespace strobe::gpu {

/// The problem without its queries where there are no query heads: keys get zero gradients.
AttentionProblem without_headless_queries(AttentionProblem problem);

/// Sequences, and one more where q or k is packed: rows behind the last sequence.
std::int64_t backward_batch(const AttentionProblem& problem);

/// Key heads of all of these.
std::int64_t backward_key_heads(const AttentionProblem& problem);

/// Bytes that the blocks of keys of one key head read and add to, at least 1. `sum_bytes`: of a query's sums of dQ.
std::int64_t key_head_bytes(const AttentionProblem& problem, std::int64_t sum_bytes);

/// Key heads whose bytes fit in so many.
std::int64_t key_heads_in(const AttentionProblem& problem, std::size_t bytes, std::int64_t sum_bytes);

/// Key heads whose bytes fit in L2 together. More than half of it stays for the rest, as the lines that the far
/// partition holds are there twice.
std::int64_t key_heads_in_l2(const AttentionProblem& problem, const DeviceShape& shape, std::int64_t sum_bytes);

/// Blocks of the longest sequence's queries or keys; at least 1, as kernels divide by them.
std::int64_t backward_blocks(std::int64_t seqlen, int block);

/// Planes of a bias: those that sequences or heads share count once.
std::int64_t bias_planes(const AttentionProblem& problem);

/// CTAs of the step that finds rows of a large LSE, one for each group.
int large_row_ctas(const AttentionProblem& problem, const BackwardParams& params);

/// What a plan knows of a kernel's parameters; blocks of block_m queries and block_n keys.
BackwardParams planned_params(const AttentionProblem& problem, int block_m, int block_n);

/// A line for the plan's text: of key heads, each in `parts`, so many parts are in flight at once.
std::string explain_sections(const AttentionProblem& problem, int section_heads, int parts);

/// A line for the plan's text. `head_dim`, `head_dim_v`: as compiled.
std::string explain_tiles(const AttentionProblem& problem, int block_n, int block_m, int head_dim, int head_dim_v);

}  // namespace strobe::gpu
