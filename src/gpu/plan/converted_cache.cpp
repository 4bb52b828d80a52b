// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/converted_cache.h"

#include "call/workspace.h"
#include "gpu/params/score.h"
#include "gpu/plan/few_queries.h"
#include "gpu/plan/supported.h"
#include "kernels/auxiliary/convert_cache_params.h"

namespace strobe::gpu {

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 33;  // as there is no other way

/// Whether the conversion's kernel takes it, whatever its size.
bool may_be_converted(const AttentionProblem& problem) {
  const bool is_cache = problem.stored.given() && problem.pass == Pass::forward && problem.dtype != DType::float32;
  return is_cache && problem.batch != 0 && problem.heads_kv != 0 && problem.seqlen_k != 0 &&
         problem.head_dim % auxiliary::kConvertedElements == 0 &&
         problem.head_dim_v % auxiliary::kConvertedElements == 0;
}

/// Of a converted K or V.
Checked converted_rows(const AttentionProblem& problem) {
  return problem.packed_k ? Checked(problem.total_k) : Checked(problem.batch) * problem.seqlen_k;
}

Checked all_converted_bytes(const AttentionProblem& problem) {
  return converted_bytes(problem, problem.head_dim) + converted_bytes(problem, problem.head_dim_v);
}

}  // namespace

Checked converted_bytes(const AttentionProblem& problem, std::int64_t columns) {
  return round_up(converted_rows(problem) * problem.heads_kv * columns * 2, kWorkspaceAlignment);
}

bool is_too_large_to_convert(const AttentionProblem& problem) {
  return may_be_converted(problem) && !all_converted_bytes(problem).at_most(kMostBytes);
}

bool can_convert_cache(const AttentionProblem& problem) {
  return may_be_converted(problem) && all_converted_bytes(problem).at_most(kMostBytes);
}

bool gains_by_conversion(const AttentionProblem& problem) {
  constexpr std::int64_t kMostGainingBytes = std::int64_t{1} << 30;
  // A key takes about as long to convert as so many query rows to multiply. log: stored-conversion-ahead
  constexpr std::int64_t kLeastRows = 512;
  if (!may_be_converted(problem)) return false;
  const bool has_blocks = problem.modifiers.block_size != 0;
  if (problem.packed_k || problem.has_leftpad_k || has_blocks) return false;
  if (!all_converted_bytes(problem).at_most(kMostGainingBytes)) return false;
  const Checked rows = Checked(problem.total_q) * (problem.heads_q / problem.heads_kv);
  const Checked products = rows * most_visible_keys(problem, score_rule(problem));
  const Checked keys = Checked(problem.batch) * problem.seqlen_k;
  return products.fits() && (keys * kLeastRows).at_most(products.value());
}

AttentionProblem with_converted_cache(AttentionProblem problem) {
  problem.stored = {};
  problem.page_size = 0;
  problem.has_cache_batch_idx = false;
  problem.total_k = converted_rows(problem).value();
  return problem;
}

}  // namespace strobe::gpu
