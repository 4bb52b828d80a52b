// SPDX-License-Identifier: Apache-2.0
#include "hopper/few_rows.h"

#include "gpu/few_queries.h"
#include "gpu/score_params.h"
#include "hopper/engine.h"
#include "hopper/pages.h"

namespace strobe::hopper {

bool has_few_rows(const AttentionProblem& problem) {
  if (problem.eight_bit.given() || problem.stored.given()) return false;
  const ScoreRule rule = gpu::score_rule(problem);
  if (rule.bias || rule.dropout || rule.block_mask != 0) return false;
  constexpr std::int64_t kRowsOfMmaSync = 16;
  const bool copies_rows = key_source(problem) == forward::KeySource::page_rows;
  return problem.seqlen_q * gpu::choose_packed_heads(problem) <= (copies_rows ? gpu::kFewRows : kRowsOfMmaSync);
}

ampere::Caller few_rows_caller() {
  return {.engine = kEngine,
          .explanation = "engine        hopper: the tensors are on a GPU of compute capability 9.0\n"
                         "kernel        the ampere engine's, by mma.sync: there are few query rows\n"};
}

}  // namespace strobe::hopper
