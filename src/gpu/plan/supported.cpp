// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/supported.h"

#include <string_view>

#include "call/checked.h"
#include "call/limits.h"
#include "expression/formula.h"
#include "kernels/score/rule.h"

namespace strobe::gpu {

Status check_texts(const AttentionProblem& problem) {
  if (!problem.expression.given()) return {};
  if (problem.eight_bit.given()) {
    return unsupported("modifiers.function is given and q is {}: the gpu engine takes it beside 16 and 32 bits",
                       name_of(problem.dtype));
  }
  return {};
}

AttentionProblem with_joined_columns(AttentionProblem problem) {
  if (problem.pass == Pass::forward) problem.head_dim += qv_columns(problem);
  return problem;
}

Status check_query_values(const AttentionProblem& problem) {
  if (!problem.has_qv) return {};
  if (problem.pass == Pass::backward) {
    return unsupported("qv is given: the gpu engine has no gradients of it; the cpu engine has");
  }
  if (problem.dtype == DType::float32 || problem.stored.given()) {
    return unsupported("qv is given, q is {} and k is {}: the gpu engine takes it where all are float16 or bfloat16",
                       name_of(problem.dtype), name_of(stored_dtype(problem)));
  }
  const std::int64_t head_dim = problem.head_dim - problem.head_dim_v;
  if (problem.head_dim_v % kJoinedColumns != 0 || problem.head_dim_v == 0 || problem.head_dim > kMaxHeadDim) {
    return unsupported(
        "qv is given, head_dim is {} and head_dim_v {}: the gpu engine takes multiples of {} as head_dim_v, and {} "
        "columns of both together",
        head_dim, problem.head_dim_v, kJoinedColumns, kMaxHeadDim);
  }
  return {};
}

MostColumns most_columns(const AttentionProblem& problem) {
  if (problem.dtype == DType::float32 || problem.eight_bit.given()) return {};
  if (problem.pass == Pass::backward) return {.head_dim = kMaxHeadDimV, .head_dim_v = kMaxHeadDimV};
  return {.head_dim = kMaxHeadDim, .head_dim_v = kMaxHeadDimV};
}

Status check_wide(const AttentionProblem& problem, std::string_view family) {
  if (!has_wide_heads(problem)) return {};
  if (!problem.eight_bit.given() && !problem.stored.given()) return {};
  return unsupported(
      "head_dim is {} and head_dim_v {}: above {} columns the {} kernels have no 8-bit inputs; the cpu engine has",
      problem.head_dim, problem.head_dim_v, kMostNarrowColumns, family);
}

Status check_sizes(const AttentionProblem& problem, const MostColumns& most) {
  for (const auto& [name, value, most_here, most_on_cpus] :
       {std::tuple{"head_dim", problem.head_dim, most.head_dim, kMaxHeadDim},
        std::tuple{"head_dim_v", problem.head_dim_v, most.head_dim_v, kMaxHeadDimV}}) {
    if (value % 8 != 0 || value > most_here) {
      return unsupported("{} is {}: the gpu engine takes multiples of 8 up to {}, the cpu engine all up to {}", name,
                         value, most_here, most_on_cpus);
    }
  }
  for (const auto& [name, value] :
       {std::pair{"seqlen_q", problem.seqlen_q}, std::pair{"seqlen_k", problem.seqlen_k},
        std::pair{"total_q", problem.total_q}, std::pair{"total_k", problem.total_k}, std::pair{"batch", problem.batch},
        std::pair{"heads_q", problem.heads_q}, std::pair{"heads_kv", problem.heads_kv},
        std::pair{"batch * heads_q", (Checked(problem.batch) * problem.heads_q).value()}}) {
    if (value > kMaxInt / 4) {
      return unsupported("{} is {}: the gpu engine takes up to {}", name, value, kMaxInt / 4);
    }
  }
  return {};
}

}  // namespace strobe::gpu
