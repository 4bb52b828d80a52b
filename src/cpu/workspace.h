// SPDX-License-Identifier: Apache-2.0
// What a call keeps beside its tensors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "call/sequences.h"
#include "cpu/kernels/arena.h"
#include "cpu/plan.h"

namespace strobe::cpu {

/// One sequence of the batch, and the blocks that it is cut into.
struct Sequence {
  SequenceSide q;
  SequenceSide k;
  std::int64_t first_row_block = 0;  // blocks of query rows of all sequences before this one, over one group
  std::int64_t first_key_block = 0;  // blocks of keys likewise
};

/// The arrays of a backward are empty in a forward's. Plans measure it by constructing it on no memory.
struct Workspace {
  Workspace(std::byte* memory, const AttentionProblem& problem, const CallPlan& plan)
      : batch(problem.batch),
        row_blocks(problem.pass == Pass::backward ? plan.row_blocks : 0),
        key_blocks(problem.wants_d_bias ? plan.key_blocks * problem.batch : 0),
        block_m(plan.tiles.block_m),
        dq_block(plan.dq_rows * plan.dq_columns),
        heads_kv(problem.heads_kv),
        worker_bytes(static_cast<std::int64_t>(plan.worker_bytes)),
        threads(plan.threads),
        arena(memory) {}

  const std::int64_t batch;
  const std::int64_t row_blocks;  // of query rows, over batch and heads
  const std::int64_t key_blocks;  // over the batch
  const std::int64_t block_m;
  const std::int64_t dq_block;  // floats of a block of query rows in the dQ sums
  const std::int64_t heads_kv;
  const std::int64_t worker_bytes;
  const std::int64_t threads;
  Arena arena;

  Sequence* const sequences = arena.take<Sequence>(batch);
  float* const delta = arena.take<float>(row_blocks * block_m);  // of each query row
  float* const dq = arena.take<float>(row_blocks * dq_block);    // [row_blocks, dq_rows, dq_columns] sums
  std::atomic<std::int32_t>* const turns = arena.take<std::atomic<std::int32_t>>(row_blocks);
  std::atomic<std::int32_t>* const bias_turns = arena.take<std::atomic<std::int32_t>>(key_blocks * heads_kv);
  std::byte* const scratch = arena.take<std::byte>(worker_bytes * threads);

  std::byte* scratch_of(int worker) const { return scratch + worker * worker_bytes; }
};

}  // namespace strobe::cpu
