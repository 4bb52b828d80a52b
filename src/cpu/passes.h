// SPDX-License-Identifier: Apache-2.0
// The passes of the CPU engine: FlashAttention-2 on Highway vectors, parallel over batch, heads and blocks of the
// sequence.
#pragma once

#include <cstddef>

#include "call/problem.h"
#include "cpu/plan.h"
#include "strobe/attention.h"
#include "strobe/jvp.h"

namespace strobe::cpu {

/// This machine, for make_call_plan.
const Machine& this_machine();

/// Workers that `threads` (0: every hardware thread) asks for.
int worker_count(int threads);

/// A validated call and the decisions made for it.
struct Call {
  const AttentionProblem& problem;
  const CallPlan& plan;
  const ParallelFor* parallel_for;  // null: oneTBB
  std::byte* workspace;             // plan.workspace_bytes, 64-byte aligned
};

void forward(const Call& call, const ForwardArguments& arguments);
void backward(const Call& call, const BackwardArguments& arguments);
void jvp(const Call& call, const JvpArguments& arguments);

}  // namespace strobe::cpu
