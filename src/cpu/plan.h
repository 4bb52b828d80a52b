// SPDX-License-Identifier: Apache-2.0
// Tiles, tasks and workspace of the CPU engine: a pure function of the problem and the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "call/problem.h"
#include "cpu/bfloat16/unit.h"
#include "cpu/expression/panel.h"
#include "cpu/few_queries_plan.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu {

/// What the plan must know of the machine.
struct Machine {
  KernelTraits kernels;
  std::int64_t l1_bytes = 0;  // data cache of one core
  std::int64_t l2_bytes = 0;
  bf16::Unit bfloat16 = bf16::Unit::none;  // what multiplies bfloat16
};

struct CallPlan {
  int threads = 1;
  bf16::Unit bfloat16 = bf16::Unit::none;  // of the bfloat16 kernels, which round P and dS; none: the vector kernels
  FewQueriesPlan few_queries;              // serves() the call, or else `tiles` do
  Tiles tiles;
  std::int64_t row_blocks = 0;   // bound on the blocks of query rows over batch and heads
  std::int64_t key_blocks = 0;   // bound on the blocks of keys of one sequence
  std::int64_t key_tasks = 0;    // the same over batch and key heads
  bool whole_sequences = false;  // backward: one task a sequence and key head does all that its heads need
  std::int64_t dq_blocks = 0;    // blocks of query rows that dQ sums are kept for
  std::int64_t dq_rows = 0;      // of a block of query rows in the dQ sums, padded
  std::int64_t dqv_columns = 0;  // of qv, the last of dq_columns; 0: there is none
  std::int64_t dq_columns = 0;   // of q and qv, padded
  std::size_t worker_bytes = 0;  // scratch memory of each worker
  std::shared_ptr<const CallExpressions> expressions;  // null: the call has none

  std::int64_t expression_bytes() const { return expressions == nullptr ? 0 : expressions->bytes(); }  // a worker
  std::size_t workspace_bytes = 0;  // of the whole call

  bool bfloat16_serves() const { return bfloat16 != bf16::Unit::none; }
};

/// `threads` >= 1. The tiles that results depend on (block_n; in a backward block_m, too) do not depend on it.
CallPlan make_call_plan(const AttentionProblem& problem, const Machine& machine, int threads);

/// The plan in a few lines of text.
std::string explain(const AttentionProblem& problem, const Machine& machine, const CallPlan& plan);

}  // namespace strobe::cpu
