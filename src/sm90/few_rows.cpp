// SPDX-License-Identifier: Apache-2.0
#include "sm90/few_rows.h"

#include <algorithm>

#include "call/checked.h"
#include "gpu/params/score.h"
#include "gpu/plan/few_queries.h"
#include "sm90/pages.h"
#include "sm90/wide_tiles.h"

namespace strobe::sm90 {
namespace {

/// Of contiguous keys, and of pages of whole pieces of 16 rows, of narrow rows several: TMA brings other pages of whole
/// boxes faster than warps look up their rows. Of the rest, only wide rows take longer to copy than to find.
/// log: sm80-page-pieces
bool reads_rows_faster(const AttentionProblem& problem) {
  constexpr std::int64_t kLeastKeys = 512;
  constexpr std::int64_t kWideRow = 128;
  constexpr std::int64_t kPieceRows = 16;
  constexpr std::int64_t kLeastNarrowPage = 64;
  constexpr std::int64_t kNarrowRow = 64;
  switch (key_source(problem)) {
    case forward::KeySource::tensor: return problem.seqlen_k >= kLeastKeys;
    case forward::KeySource::page_rows: return std::min(problem.head_dim, problem.head_dim_v) >= kWideRow;
    default:
      return problem.page_size % kPieceRows == 0 && problem.seqlen_k >= kLeastKeys &&
             (problem.page_size >= kLeastNarrowPage || std::min(problem.head_dim, problem.head_dim_v) > kNarrowRow);
  }
}

/// K and V in 8 bits, which those kernels multiply as they are: rows of whole copies.
bool takes_stored_rows(const AttentionProblem& problem) {
  constexpr std::int64_t kCopiedElements = 16;
  return problem.head_dim % kCopiedElements == 0 && problem.head_dim_v % kCopiedElements == 0;
}

}  // namespace

bool is_decode(const AttentionProblem& problem) {
  constexpr std::int64_t kFewestRows = 16;
  if (problem.eight_bit.given()) return false;
  if (problem.row_invariant) return false;  // one kernel, however many rows there are
  if (problem.has_tree_mask) return false;  // measured with WGMMA alone
  if (has_wide_heads(problem)) return false;
  const ScoreRule rule = gpu::score_rule(problem);
  if (rule.bias || rule.dropout || rule.block_mask != 0) return false;
  const int packed_heads = gpu::choose_packed_heads(problem);
  if (!(Checked(problem.seqlen_q) * packed_heads).at_most(gpu::kFewRows)) return false;
  if (problem.stored.given()) return takes_stored_rows(problem);
  return gpu::usual_rows(problem, packed_heads) <= kFewestRows && reads_rows_faster(problem);
}

}  // namespace strobe::sm90
