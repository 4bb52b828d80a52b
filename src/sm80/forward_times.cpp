// SPDX-License-Identifier: Apache-2.0
#include "call/arithmetic.h"
#include "sm80/forward_tiles.h"
#include "sm80/times.h"

namespace strobe::sm80 {
namespace {

constexpr double kTileOverhead = 1.5;  // steps, of a tile's start and end

/// Each warp, or those that share rows together, read K and V for their rows, and each Q where it is not in registers.
/// Copies write K and V. Warps that share rows also read the probabilities, once a slice.
gpu::StepWork forward_step(const forward::Config& c) {
  const double scores = 1.0 * block_m(c) * c.block_n;
  const double columns = c.head_dim + c.head_dim_v;
  const double element = bytes_of(c.rule.element);
  const double key_bytes = columns * c.block_n * element;
  const double query_bytes = c.q_in_registers ? 0.0 : c.rows_per_warp * c.head_dim * element;
  const double probability_bytes = sliced(c) ? value_slices(c) * c.rows_per_warp * c.block_n * element : 0.0;
  return {.by = c.rule.element == Element::fp32 ? gpu::Products::tf32 : gpu::Products::mma,
          .flops = 2.0 * scores * columns,
          .scores = scores,
          .shared_bytes = row_warps(c) * (key_bytes + c.column_warps * (query_bytes + probability_bytes)) + key_bytes};
}

/// The problem whose queries are the rows of packed heads, each of which sees what its query does.
gpu::BlockSteps tile_steps(const AttentionProblem& problem, const forward::Config& c) {
  return gpu::steps_of_queries(problem, std::max(1, block_m(c) / c.packed_heads), c.block_n);
}

}  // namespace

gpu::PlannedWork forward_work(const AttentionProblem& problem, const DeviceShape& shape, const ForwardPlan& plan) {
  const forward::Config& c = plan.config;
  gpu::PlannedWork work{.rule = c.rule};
  if (plan.tiles == 0 || problem.total_k == 0) return work;
  const AttentionProblem mean = gpu::of_mean_lengths(problem);
  const gpu::BlockSteps steps = tile_steps(mean, c);
  const double heads = static_cast<double>(problem.batch) * plan.order.heads;
  const double tiles = heads * static_cast<double>(ceil_div<std::int64_t>(rows_of(mean, c), block_m(c)));
  work.step = forward_step(c);
  work.steps = splits(c) ? heads * steps.all / shape.multiprocessors + kTileOverhead
                         : gpu::last_steps(tiles, heads * steps.all + tiles * kTileOverhead,
                                           steps.longest + kTileOverhead, shape);
  work.memory_bytes =
      gpu::query_row_bytes(problem) + gpu::key_row_bytes(mean) + static_cast<double>(workspace_bytes(plan));
  work.launches = splits(c) ? 2 : 1;
  work.alone_exponentials = kAloneExponentials;
  work.alone_shared_memory = kAloneSharedMemory;
  work.assumes = gpu::assumption(problem);
  return work;
}

}  // namespace strobe::sm80
