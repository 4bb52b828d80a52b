// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "call/visible_keys.h"
#include "sm90/dealt_tiles.h"
#include "sm90/times.h"

namespace strobe::sm90 {
namespace {

/// Each warpgroup's products read its rows of Q, and K and V; P is in registers. Producers write K and V.
gpu::StepWork forward_step(const forward::Config& c) {
  const double scores = 1.0 * block_m(c) * c.block_n;
  const double columns = c.head_dim + c.head_dim_v;
  const double key_bytes = columns * c.block_n * operand_bytes(c);
  const double query_bytes = 1.0 * kRowsPerWarpgroup * c.head_dim * operand_bytes(c);
  return {.by = eight_bit(c) ? gpu::Products::eight_bit : gpu::Products::warpgroup,
          .flops = 2.0 * scores * columns,
          .scores = scores,
          .shared_bytes = c.consumer_warpgroups * (query_bytes + key_bytes) + key_bytes};
}

/// The share of the exponentials that no products run beside: those of a warpgroup run beside the products of others on
/// its multiprocessor, where there are, or have turns with them. log: few-warpgroups-times
double alone_exponentials(const forward::Config& c, const DeviceShape& shape, double tiles) {
  if (c.loop != forward::Loop::pipelined || eight_bit(c) || converts(c)) return 0.0;
  const double ctas = std::clamp(std::ceil(tiles / shape.multiprocessors), 1.0, 1.0 * c.ctas_per_sm);
  const double warpgroups = ctas * c.consumer_warpgroups;
  if (warpgroups > 2.0 || (c.consumer_warpgroups == 2 && c.ping_pong)) return 0.0;
  return warpgroups > 1.0 ? 0.5 : 1.0;
}

/// Steps of the multiprocessor that ends last, and how many multiprocessors are at work until then. CTAs that share one
/// share its units.
void set_steps(const AttentionProblem& problem, const DeviceShape& shape, const ForwardPlan& plan,
               gpu::PlannedWork& work) {
  const VisibleKeys visible = visible_keys(problem);
  const std::int64_t m_tiles = m_tiles_of(problem, plan.config);
  double all = 0.0;
  double longest = 0.0;
  for (std::int64_t m = 0; m < m_tiles; ++m) {
    const double cost = tile_cost(problem, visible, plan.config, static_cast<int>(m));
    all += cost;
    longest = std::max(longest, cost);
  }
  const double heads = static_cast<double>(problem.batch) * plan.tiles.heads;
  if (plan.config.schedule == Schedule::split) {
    work.steps = heads * all / std::min(plan.workers, shape.multiprocessors) + 1.0;
    return;
  }
  work.steps = gpu::last_steps(heads * static_cast<double>(m_tiles), heads * all, longest, shape);
  work.filled = heads * all / shape.multiprocessors / work.steps;
}

}  // namespace

gpu::PlannedWork forward_work(const AttentionProblem& problem, const DeviceShape& shape, const ForwardPlan& plan) {
  gpu::PlannedWork work{.rule = plan.config.rule};
  if (plan.tiles.tiles == 0 || problem.total_k == 0) return work;
  const AttentionProblem mean = gpu::of_mean_lengths(problem);
  const double parts = static_cast<double>(workspace_bytes(plan));
  work.step = forward_step(plan.config);
  set_steps(mean, shape, plan, work);
  work.memory_bytes = gpu::query_row_bytes(problem) + gpu::key_row_bytes(mean) + parts;
  work.launches = plan.config.schedule == Schedule::split ? 2 : 1;
  if (plan.config.schedule != Schedule::split) {
    work.alone_exponentials = alone_exponentials(plan.config, shape, plan.tiles.tiles);
  }
  work.assumes = gpu::assumption(problem);
  return work;
}

}  // namespace strobe::sm90
