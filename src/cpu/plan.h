// Tiles, tasks and workspace of the CPU engine: a pure function of the problem and the machine's shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "call/problem.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu {

/// What the plan must know of the machine.
struct CpuShape {
  KernelTraits kernels;
  std::int64_t l1_bytes = 0;  // data cache of one core
  std::int64_t l2_bytes = 0;
  bool amx = false;  // bfloat16 on matrix tiles
};

/// Byte offsets within the workspace; 64-byte aligned. The backward's arrays have size 0 in a forward.
struct CpuWorkspace {
  std::size_t sequences = 0;   // a Sequence per batch entry
  std::size_t delta = 0;       // float32 per query row
  std::size_t dq = 0;          // float32 [row_blocks, dq_rows, dq_columns]
  std::size_t turns = 0;       // int32 per block of query rows
  std::size_t bias_turns = 0;  // int32 per block of keys and key head
  std::size_t scratch = 0;     // worker_bytes for each worker
  std::size_t worker_bytes = 0;
  std::size_t bytes = 0;
};

struct CpuPlan {
  int threads = 1;
  bool amx = false;  // the AMX kernels, which round P and dS to bfloat16
  Tiles tiles;
  std::int64_t row_blocks = 0;  // bound on the blocks of query rows over batch and heads
  std::int64_t key_blocks = 0;  // bound on the blocks of keys of one sequence
  std::int64_t dq_rows = 0;     // of a block of query rows in the dQ sums, padded
  std::int64_t dq_columns = 0;  // head_dim, padded
  CpuWorkspace workspace;
};

/// `threads` >= 1. The tiles that results depend on (block_n; in a backward block_m, too) do not depend on it.
CpuPlan cpu_plan(const AttentionProblem& problem, const CpuShape& shape, int threads);

/// The plan in a few lines of text.
std::string explain(const AttentionProblem& problem, const CpuShape& shape, const CpuPlan& plan);

}  // namespace strobe::cpu
