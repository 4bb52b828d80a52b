// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/backward_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/heads.h"
#include "gpu/params/score.h"
#include "kernels/math/philox.h"
#include "kernels/sequence/query_blocks.h"

namespace strobe::gpu {

AttentionProblem without_headless_queries(AttentionProblem problem) {
  if (problem.heads_q > 0) return problem;
  problem.packed_q = problem.has_seqused_q = false;
  problem.seqlen_q = problem.total_q = 0;
  return problem;
}

std::int64_t backward_batch(const AttentionProblem& problem) {
  return problem.batch + (problem.packed_q || problem.packed_k ? 1 : 0);
}

std::int64_t backward_key_heads(const AttentionProblem& problem) {
  return (Checked(backward_batch(problem)) * problem.heads_kv).value();
}

std::int64_t key_head_bytes(const AttentionProblem& problem, std::int64_t sum_bytes) {
  const auto element_bytes = static_cast<std::int64_t>(size_of(problem.dtype));
  const Checked row_bytes = element_bytes * (problem.head_dim + problem.head_dim_v) + sum_bytes;
  return std::max<std::int64_t>(1, (Checked(heads_per_key_head(problem)) * problem.seqlen_q * row_bytes).value());
}

std::int64_t key_heads_in(const AttentionProblem& problem, std::size_t bytes, std::int64_t sum_bytes) {
  return static_cast<std::int64_t>(bytes) / key_head_bytes(problem, sum_bytes);
}

std::int64_t key_heads_in_l2(const AttentionProblem& problem, const DeviceShape& shape, std::int64_t sum_bytes) {
  return key_heads_in(problem, shape.l2_bytes * 2 / 5, sum_bytes);
}

std::int64_t backward_blocks(std::int64_t seqlen, int block) {
  return std::max<std::int64_t>(1, ceil_div<std::int64_t>(seqlen, block));
}

std::int64_t bias_planes(const AttentionProblem& problem) {
  const ModifierShape& shape = problem.modifiers;
  return (Checked(shape.bias_per_batch ? problem.batch : 1) * (shape.bias_per_head ? problem.heads_q : 1)).value();
}

int large_row_ctas(const AttentionProblem& problem, const BackwardParams& params) {
  return (Checked(params.row_groups) * params.heads * problem.batch).value<int>();
}

BackwardParams planned_params(const AttentionProblem& problem, int block_m, int block_n) {
  BackwardParams params{};
  params.visibility = visibility_params(problem);
  params.scale = problem.scale;
  if (problem.dropout != 0.0F) params.scale /= dropout_key(problem.dropout, 0, 0).keep_probability();
  params.total_k = static_cast<int>(problem.total_k);
  params.head_dim = static_cast<int>(problem.head_dim);
  params.head_dim_v = static_cast<int>(problem.head_dim_v);
  params.heads = static_cast<int>(problem.heads_q);
  params.heads_kv = static_cast<int>(problem.heads_kv);
  params.heads_per_kv = static_cast<int>(heads_per_key_head(problem));
  params.m_blocks = static_cast<int>(backward_blocks(problem.seqlen_q, block_m));
  params.n_blocks = static_cast<int>(backward_blocks(problem.seqlen_k, block_n));
  params.query_blocks =
      sequence::query_blocks(problem.packed_q, static_cast<int>(problem.batch), static_cast<int>(problem.seqlen_q),
                             static_cast<int>(problem.total_q), block_m);
  return params;
}

std::string explain_sections(const AttentionProblem& problem, int section_heads, int parts) {
  return fmt::format("sections      {} of {} {} in flight at once\n", section_heads,
                     backward_key_heads(problem) * parts, parts > 1 ? "parts of key heads" : "key heads");
}

std::string explain_tiles(const AttentionProblem& problem, int block_n, int block_m, int head_dim, int head_dim_v) {
  return fmt::format("tiles         {} keys x {} query rows, head_dim {} as {}, head_dim_v {} as {}\n", block_n,
                     block_m, problem.head_dim, head_dim, problem.head_dim_v, head_dim_v);
}

}  // namespace strobe::gpu
