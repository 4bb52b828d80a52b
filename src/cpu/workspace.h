// SPDX-License-Identifier: Apache-2.0
// What a call keeps beside its tensors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "call/checked.h"
#include "call/heads.h"
#include "call/sequences.h"
#include "cpu/kernels/arena.h"
#include "cpu/kernels/task.h"
#include "cpu/plan.h"

namespace strobe::cpu {

/// One sequence of the batch, and the blocks that it is cut into.
struct Sequence {
  SequenceSide q;
  SequenceSide k;
  std::int64_t first_row_block = 0;  // blocks of query rows of all sequences before this one, over one group
  std::int64_t first_key_block = 0;  // blocks of keys likewise
};

/// Arrays that a call does not need are empty. Plans measure it by constructing it on no memory.
struct Workspace {
  Workspace(std::byte* memory, const AttentionProblem& problem, const CallPlan& plan)
      : batch(problem.batch),
        row_blocks(problem.pass == Pass::backward ? plan.row_blocks : 0),
        dq_blocks(plan.dq_blocks),
        key_tasks(problem.wants_d_bias ? plan.key_tasks : 0),
        block_m(plan.tiles.block_m),
        dq_block((Checked(plan.dq_rows) * plan.dq_columns).value()),
        few_query_chunks(plan.few_queries.chunks),
        few_query_groups(head_groups(problem)),
        few_query_floats(plan.few_queries.state_floats),
        few_query_runs(plan.few_queries.runs),
        capture_turns_count(problem.expression.gradients != 0 ? plan.key_tasks : 0),
        expression_bytes(plan.expression_bytes()),
        worker_bytes(static_cast<std::int64_t>(plan.worker_bytes)),
        threads(plan.threads),
        arena(memory) {}

  const std::int64_t batch;
  const std::int64_t row_blocks;  // of query rows, over batch and heads
  const std::int64_t dq_blocks;   // of query rows that dQ sums are kept for
  const std::int64_t key_tasks;   // blocks of keys, over batch and key heads
  const std::int64_t block_m;
  const std::int64_t dq_block;  // floats of a block of query rows in the dQ sums
  const std::int64_t few_query_chunks;
  const std::int64_t few_query_groups;  // of heads
  const std::int64_t few_query_floats;  // of one chunk and group
  const std::int64_t few_query_runs;
  const std::int64_t capture_turns_count;  // blocks of keys, over batch and key heads
  const std::int64_t expression_bytes;     // of a worker
  const std::int64_t worker_bytes;
  const std::int64_t threads;
  Arena arena;

  Sequence* const sequences = arena.take<Sequence>(batch);
  float* const delta = arena.take<float>(row_blocks, block_m);  // of each query row
  const RowNormalizers normalizers{arena.take<float>(row_blocks, block_m), arena.take<float>(row_blocks, block_m)};
  float* const dq = arena.take<float>(dq_blocks, dq_block);  // [dq_blocks, dq_rows, dq_columns] sums
  std::atomic<std::int32_t>* const turns = arena.take<std::atomic<std::int32_t>>(row_blocks);
  std::atomic<std::int32_t>* const bias_turns = arena.take<std::atomic<std::int32_t>>(key_tasks);
  std::atomic<std::int32_t>* const capture_turns = arena.take<std::atomic<std::int32_t>>(capture_turns_count);
  float* const few_query_states = arena.take<float>(few_query_chunks, few_query_groups,
                                                    few_query_floats);  // [chunk, group of heads] FewQueriesState
  std::atomic<std::int64_t>* const chunks_left = arena.take<std::atomic<std::int64_t>>(batch, few_query_runs);
  std::byte* const scratch = arena.take<std::byte>(worker_bytes, threads);

  std::byte* const expressions = arena.take<std::byte>(expression_bytes, threads);

  std::byte* expressions_of(int worker) const { return expressions + worker * expression_bytes; }
  std::byte* scratch_of(int worker) const { return scratch + worker * worker_bytes; }
};

}  // namespace strobe::cpu
