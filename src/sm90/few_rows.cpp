// SPDX-License-Identifier: Apache-2.0
#include "sm90/few_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "call/checked.h"
#include "gpu/params/score.h"
#include "gpu/plan/few_queries.h"
#include "sm90/engine.h"
#include "sm90/pages.h"

namespace strobe::sm90 {
namespace {

/// TMA brings pages of whole boxes faster than warps look up their rows; of other pages, only wide rows take longer to
/// copy than to find.
bool reads_rows_faster(const AttentionProblem& problem) {
  constexpr std::int64_t kLeastKeys = 512;
  constexpr std::int64_t kWideRow = 128;
  switch (key_source(problem)) {
    case forward::KeySource::tensor: return problem.seqlen_k >= kLeastKeys;
    case forward::KeySource::page_rows: return std::min(problem.head_dim, problem.head_dim_v) >= kWideRow;
    default: return false;
  }
}

/// K and V in 8 bits: whole copies, of rows that lie one behind another.
bool reads_stored_rows(const AttentionProblem& problem) {
  constexpr std::int64_t kCopiedElements = 16;
  return key_source(problem) == forward::KeySource::tensor && problem.head_dim % kCopiedElements == 0 &&
         problem.head_dim_v % kCopiedElements == 0;
}

sm80::Caller caller(std::string_view reason) {
  return {.engine = kEngine,
          .explanation = fmt::format("engine        hopper: the tensors are on a GPU of compute capability 9.0\n"
                                     "kernel        the ampere engine's, by mma.sync: {}\n",
                                     reason)};
}

}  // namespace

bool has_few_rows(const AttentionProblem& problem) {
  constexpr std::int64_t kRowsOfMmaSync = 16;
  if (problem.eight_bit.given()) return false;
  if (problem.stored.given() && !reads_stored_rows(problem)) return false;
  if (problem.row_invariant) return false;  // one kernel, however many rows there are
  if (problem.has_tree_mask) return false;  // measured with WGMMA alone
  const ScoreRule rule = gpu::score_rule(problem);
  if (rule.bias || rule.dropout || rule.block_mask != 0) return false;
  return (Checked(problem.seqlen_q) * gpu::choose_packed_heads(problem)).at_most(kRowsOfMmaSync) &&
         reads_rows_faster(problem);
}

sm80::Caller few_rows_caller() { return caller("there are few query rows"); }

sm80::Caller stored_page_rows_caller() { return caller("keys in 8 bits are read row by row"); }

}  // namespace strobe::sm90
