// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/supported.h"

#include "call/checked.h"
#include "call/random_state.h"

namespace strobe::gpu {

Status check_sizes(const AttentionProblem& problem) {
  for (const auto& [name, value] :
       {std::pair{"head_dim", problem.head_dim}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (value % 8 != 0 || value > 256) {
      return unsupported("{} is {}: the gpu engine takes multiples of 8 up to 256", name, value);
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

Status check_random(const AttentionProblem& problem, const RandomState& random) {
  if (problem.dropout == 0.0F ||
      (random.first_batch == 0 && heads_in_all(random, problem.heads_q) == problem.heads_q)) {
    return {};
  }
  return unsupported(
      "random has first_batch {} and heads {}: the gpu engine draws for whole calls, the cpu engine for parts",
      random.first_batch, random.heads);
}

}  // namespace strobe::gpu
