// SPDX-License-Identifier: Apache-2.0
// Which forward calls have so few queries that reading K and V is what takes time, and how their keys are cut.
#pragma once

#include <cstdint>

#include "call/problem.h"

namespace strobe::cpu {

struct Machine;

/// Keys of a task; chunks begin at its multiples, whatever else is in the call: a row's sums keep their order.
inline constexpr std::int64_t kFewQueriesChunk = 256;

/// A pure function of the problem, the machine and, for groups_per_task and runs, the number of threads.
struct FewQueriesPlan {
  std::int64_t rows = 0;  // of the longest sequence and a group of heads; 0: the ordinary tiles serve the call
  std::int64_t groups_per_task = 0;  // groups of heads, which lie side by side in memory
  std::int64_t chunks = 0;           // bound on the chunks of all sequences
  std::int64_t runs = 0;             // of groups_per_task groups
  std::int64_t tasks = 0;            // bound: chunks times runs
  std::int64_t state_floats = 0;     // of one chunk and group of heads

  bool serves() const { return rows > 0; }
};

FewQueriesPlan plan_few_queries(const AttentionProblem& problem, const Machine& machine, int threads);

}  // namespace strobe::cpu
