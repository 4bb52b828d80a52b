// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gpu/plan/backward_plan.h"
#include "sm80/times.h"

namespace strobe::sm80 {
namespace {

constexpr double kFloat = 4.0;  // bytes

/// S and dP of a warp's keys, part by part; dV and dK, whose other operand is in shared memory where warps share keys;
/// P and dS on their way; dQ. Copies write Q and dO.
double shared_bytes(const backward::Config& c) {
  const double columns = c.head_dim + c.head_dim_v;
  const double scores = 1.0 * c.block_m * block_n(c);
  const double shared = c.column_warps > 1 ? 1.0 : 0.0;
  const double parts = 1.0 * c.block_m / (c.column_warps * c.part_m);
  const double warp = parts * (c.rows_per_warp + c.part_m) * columns + c.block_m * columns / c.column_warps +
                      shared * 2.0 * c.rows_per_warp * c.block_m;
  const backward::QueryTile query = query_tile(c);
  const double queries = 1.0 * c.query_slices * (query.rows + query.columns) * block_n(c);
  return bytes_of(c.rule.element) * (c.warps * (warp + queries) + (1.0 + shared) * scores + c.block_m * columns);
}

gpu::StepWork backward_step(const backward::Config& c) {
  const double scores = 1.0 * c.block_m * block_n(c);
  return {.by = c.rule.element == Element::fp32 ? gpu::Products::tf32 : gpu::Products::mma,
          .flops = 2.0 * scores * (3.0 * c.head_dim + 2.0 * c.head_dim_v),
          .scores = scores,
          .shared_bytes = shared_bytes(c),
          .sum_bytes = kFloat * c.block_m * c.head_dim};
}

}  // namespace

gpu::PlannedWork backward_work(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan) {
  constexpr double kItemOverhead = 4.0;  // steps, of an item's start and end
  const backward::Config& c = plan.config;
  gpu::PlannedWork work{.rule = c.rule};
  if (plan.items == 0 || plan.query_blocks == 0 || problem.total_k == 0) return work;
  const AttentionProblem mean = gpu::of_mean_lengths(problem);
  const gpu::BlockSteps steps = gpu::steps_of_keys(mean, c.block_m, block_n(c));
  const double batch = static_cast<double>(std::max<std::int64_t>(1, problem.batch));
  const double items =
      batch * plan.params.heads_kv * static_cast<double>(gpu::backward_blocks(mean.seqlen_k, block_n(c)));
  const double all = batch * plan.params.heads * steps.all;
  const double columns = static_cast<double>(problem.head_dim + problem.head_dim_v);
  const double sums = kFloat * static_cast<double>(problem.head_dim);
  const double element = gpu::element_bytes(problem);
  work.step = backward_step(c);
  work.steps = gpu::last_steps(items, all + items * kItemOverhead,
                               plan.params.heads_per_kv * steps.longest + kItemOverhead, shape);
  work.memory_bytes =
      gpu::query_rows(problem) * (element * columns + 2.0 * sums) + 2.0 * gpu::key_rows(problem) * element * columns;
  work.around_seconds = gpu::memory_seconds(
      shape, gpu::prepare_bytes(problem, sums) +
                 gpu::query_rows(problem) * (sums + element * static_cast<double>(problem.head_dim)));
  work.launches = 4;
  work.alone_exponentials = kAloneExponentials;
  work.alone_shared_memory = kAloneSharedMemory;
  work.assumes = gpu::assumption(problem);
  return work;
}

}  // namespace strobe::sm80
