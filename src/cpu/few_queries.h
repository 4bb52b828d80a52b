// SPDX-License-Identifier: Apache-2.0
// Forward calls of few queries: chunks of keys are tasks, the last of a sequence's to be done merges them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <new>
#include <span>

#include "call/checked.h"
#include "cpu/call.h"
#include "cpu/few_queries_plan.h"
#include "cpu/kernels/few_queries.h"
#include "cpu/kernels/kernels.h"
#include "cpu/workers.h"

namespace strobe::cpu {

/// Cuts the keys that a sequence's queries see into chunks, counted in Sequence::first_key_block; a sequence without
/// any has one, which writes its rows. Returns their number.
std::int64_t place_chunks(const AttentionProblem& problem, std::span<Sequence> sequences);

/// The chunks of one sequence: [first, last), which begin at multiples of kFewQueriesChunk. A row-invariant call has
/// one, of all keys: chunks apart would be summed in another order than tiles one after another.
struct ChunkRange {
  std::int64_t first = 0;
  std::int64_t last = 0;

  std::int64_t count() const { return last - first; }
};
ChunkRange chunks_of(const AttentionProblem& problem, const Sequence& sequence);

/// Runs a call that the plan gives to this path. `task_of(sequence, group, worker)` is the ForwardTask of all rows of
/// one group of heads, in memory of a worker.
template <class TaskOf>
void forward_few_queries(const Call& call, const Workspace& workspace, const TaskOf& task_of) {
  const AttentionProblem& problem = call.problem;
  const FewQueriesPlan& plan = call.plan.few_queries;
  const std::span<Sequence> sequences(workspace.sequences, static_cast<std::size_t>(problem.batch));
  const std::int64_t chunks = place_chunks(problem, sequences);
  const std::int64_t groups = head_groups(problem);
  const std::int64_t runs = ceil_div(groups, plan.groups_per_task);
  for (const Sequence& sequence : sequences) {
    const std::int64_t own = chunks_of(problem, sequence).count();
    for (std::int64_t run = 0; run < runs; ++run) {
      new (workspace.chunks_left + (&sequence - sequences.data()) * runs + run) std::atomic<std::int64_t>(own);
    }
  }
  const auto chunk = [&](std::int64_t index, int worker) {
    const std::int64_t place = index / runs;  // among all chunks
    const std::int64_t run = index % runs;
    const Sequence& sequence = sequence_of(sequences, &Sequence::first_key_block, place);
    const std::int64_t first_group = run * plan.groups_per_task;
    const std::int64_t count = std::min(plan.groups_per_task, groups - first_group);
    if (sequence.q.length == 0) return;
    std::array<ForwardTask, kFewQueriesHeads> heads;
    for (std::int64_t i = 0; i < count; ++i) {
      heads[static_cast<std::size_t>(i)] = task_of(sequence, first_group + i, worker);
    }
    const ChunkRange range = chunks_of(problem, sequence);
    const std::int64_t key = (range.first + place - sequence.first_key_block) * kFewQueriesChunk;
    const auto states_at = [&](std::int64_t at) {
      return workspace.few_query_states + (at * groups + first_group) * plan.state_floats;
    };
    few_queries_chunk(
        {.heads = {heads.data(), static_cast<std::size_t>(count)},
         .key_begin = key,
         .key_end = problem.row_invariant ? sequence.k.length : std::min(key + kFewQueriesChunk, sequence.k.length),
         .states = states_at(place),
         .state_floats = plan.state_floats},
        workspace.scratch_of(worker));
    std::atomic<std::int64_t>& left = workspace.chunks_left[(&sequence - sequences.data()) * runs + run];
    if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    for (std::int64_t i = 0; i < count; ++i) {
      merge_few_queries(heads[static_cast<std::size_t>(i)], states_at(sequence.first_key_block) + i * plan.state_floats,
                        range.count(), groups * plan.state_floats, workspace.scratch_of(worker));
    }
  };
  for_each_task((Checked(chunks) * runs).value(), call.plan.threads, call.parallel_for, chunk);
}

}  // namespace strobe::cpu
