// SPDX-License-Identifier: Apache-2.0
#include "io_walk.h"

#include <array>

#include "io_blocks.h"

namespace strobe::bench {
namespace {

using WalkFunction = Result<BlockSizes> (*)(const IoProblem&, FastMemory&, SlowMemory&);

Result<Walk> run(WalkFunction function, const IoProblem& problem, SlowMemory& slow) {
  FastMemory fast(problem.fast_memory, !slow.q.values.empty());
  const Result<BlockSizes> sizes = function(problem, fast, slow);
  if (!sizes.ok()) return sizes.status();
  return Walk{fast.traffic(), fast.peak(), sizes->outer, sizes->inner};
}

}  // namespace

SlowMemory make_slow_memory(const IoProblem& problem, bool computes) {
  const auto matrix = [&](std::int64_t columns) {
    const auto size = static_cast<std::size_t>(computes ? problem.seqlen * columns : 0);
    return SlowMatrix{problem.seqlen, columns, std::vector<double>(size)};
  };
  SlowMemory slow;
  for (SlowMatrix* const each : {&slow.q, &slow.k, &slow.v, &slow.o, &slow.d_o, &slow.dq, &slow.dk, &slow.dv}) {
    *each = matrix(problem.head_dim);
  }
  for (SlowMatrix* const each : {&slow.s, &slow.p, &slow.dp, &slow.ds}) *each = matrix(problem.seqlen);
  for (SlowMatrix* const each : {&slow.row_max, &slow.row_sum, &slow.lse, &slow.delta}) *each = matrix(1);
  return slow;
}

Result<Walk> walk_forward(Order order, const IoProblem& problem, SlowMemory& memory) {
  constexpr std::array kWalks{standard_forward, flash_attention_forward, flash_attention_2_forward};
  return run(kWalks[static_cast<std::size_t>(order)], problem, memory);
}

Result<Walk> walk_backward(Order order, const IoProblem& problem, SlowMemory& memory) {
  constexpr std::array kWalks{standard_backward, flash_attention_backward, flash_attention_2_backward};
  return run(kWalks[static_cast<std::size_t>(order)], problem, memory);
}

}  // namespace strobe::bench
