// SPDX-License-Identifier: Apache-2.0
#include "cpu/few_queries.h"

#include "call/checked.h"
#include "call/heads.h"
#include "call/visible_keys.h"
#include "cpu/bfloat16_tiles.h"
#include "cpu/plan.h"

namespace strobe::cpu {

FewQueriesPlan plan_few_queries(const AttentionProblem& problem, const Machine& machine, int threads) {
  if (problem.pass != Pass::forward || problem.eight_bit.given() || !is_normalized(problem)) return {};
  if (problem.has_qv && problem.row_invariant) return {};  // tiles sum the two products of a score as one
  const std::int64_t rows = (Checked(problem.seqlen_q) * heads_per_group(problem)).value();
  // Up to here columns across the lanes are faster than queries across the lanes. The bfloat16 kernels overtake them
  // sooner: at 8 to 16 rows on one thread, later where chunks of keys keep more threads busy than heads do.
  // log: bf16-decode-row-limit
  constexpr std::int64_t kRowsBesideBfloat16 = 16;
  const bool beside_bfloat16 =
      machine.bfloat16 != bf16::Unit::none && takes_bfloat16(problem) && !problem.row_invariant;
  const std::int64_t most = beside_bfloat16 ? kRowsBesideBfloat16 : kFewQueriesRows;
  if (rows == 0 || rows > most || head_groups(problem) == 0) return {};

  FewQueriesPlan plan{.rows = rows};
  // The heads that one page of keys holds side by side: hardware prefetchers follow within a page.
  constexpr std::int64_t kPage = 4096;
  const std::int64_t row_bytes = problem.head_dim * static_cast<std::int64_t>(size_of(stored_dtype(problem)));
  const std::int64_t groups = head_groups(problem);
  plan.groups_per_task = std::clamp<std::int64_t>(ceil_div(kPage, row_bytes), 1, std::min(groups, kFewQueriesHeads));
  if (problem.row_invariant) {  // whose sequences are not cut: tasks take fewer groups, for every worker to have one
    plan.groups_per_task =
        std::clamp<std::int64_t>((Checked(groups) * problem.batch / threads).value(), 1, plan.groups_per_task);
  }
  plan.runs = ceil_div(groups, plan.groups_per_task);
  plan.chunks = (problem.row_invariant ? 0 : problem.total_k / kFewQueriesChunk) + problem.batch;
  plan.tasks = (Checked(plan.chunks) * plan.runs).value();
  plan.state_floats = FewQueriesState::size(rows, round_up(problem.head_dim_v, machine.kernels.lanes));
  return plan;
}

ChunkRange chunks_of(const AttentionProblem& problem, const Sequence& sequence) {
  if (problem.row_invariant) return {0, 1};
  const VisibleKeys visible = visible_keys(problem, sequence.q, sequence.k);
  const std::int64_t begin = visible.begin(0);
  const std::int64_t end = visible.end(std::max<std::int64_t>(sequence.q.length - 1, 0));
  if (begin >= end) return {0, 1};
  return {begin / kFewQueriesChunk, ceil_div(end, kFewQueriesChunk)};
}

std::int64_t place_chunks(const AttentionProblem& problem, std::span<Sequence> sequences) {
  std::int64_t chunks = 0;
  for (Sequence& sequence : sequences) {
    sequence.first_key_block = chunks;
    chunks += chunks_of(problem, sequence).count();
  }
  return chunks;
}

}  // namespace strobe::cpu
