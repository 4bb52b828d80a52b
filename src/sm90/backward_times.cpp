// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "gpu/plan/backward_plan.h"
#include "kernels/math/hi_lo.h"
#include "sm90/backward_sections.h"
#include "sm90/order_simulation.h"
#include "sm90/times.h"

namespace strobe::sm90 {
namespace {

constexpr double kFloat = 4.0;  // bytes
constexpr double kHalf = 2.0;   // of an element
// log: predicted-times
constexpr double kAloneExponentials = 0.5;
constexpr double kAloneOrdered = 0.75;  // blocks of keys wait for each other; by roles, warpgroups do

/// Operands of S and dP, and of dV and dK, whose other operand is in registers, of both warpgroups; dS; and dQ, by
/// parts. The producer writes Q and dO.
double joint_shared_bytes(const backward::Config& c) {
  const double rows = c.block_m;
  const double columns = c.head_dim + c.head_dim_v;
  const double warpgroup = kHalf * columns * (kRowsPerWarpgroup + rows) + kHalf * columns * rows;
  const double scores = kHalf * rows * block_n(c);
  const double parts = query_gradient_parts(c);
  const double query_operands = query_gradient_by_rows(c) ? scores + parts * kHalf * c.head_dim * block_n(c)
                                                          : parts * scores + kHalf * c.head_dim * block_n(c);
  const double staged = c.staged_dq ? 2.0 * kFloat * rows * c.head_dim : 0.0;
  return backward::kKeyWarpgroups * warpgroup + scores + query_operands + staged + kHalf * rows * columns;
}

/// Each product is one warpgroup's; P passes from one to the other, and dS to memory.
double roles_shared_bytes(const backward::Config& c) {
  const double rows = c.block_m;
  const double columns = c.head_dim + c.head_dim_v;
  const double scores = kHalf * rows * block_n(c);
  return kHalf * columns * (kRowsPerWarpgroup + rows) + kHalf * columns * rows + 4.0 * scores + kHalf * rows * columns;
}

/// Of one CTA of a pair: its product of scores, whose other operand registers hold in part, the sums of two warpgroups
/// by parts, P or dS, and what the producer writes.
double wide_shared_bytes(const backward::Config& c) {
  constexpr double kSumParts = 4.0;  // 128 columns each
  const double rows = c.block_m;
  const double columns = (c.head_dim + c.head_dim_v) / 2.0;  // of the mean of both CTAs
  const double scores = kHalf * rows * block_n(c);
  const double product = kHalf * (rows * columns + block_n(c) * (columns - c.register_columns));
  return product + kSumParts * scores + kHalf * rows * columns + 3.0 * scores + 2.0 * kHalf * rows * columns;
}

gpu::StepWork backward_step(const backward::Config& c) {
  const double scores = 1.0 * c.block_m * block_n(c);
  const double products = (c.by_roles ? 2.0 : 3.0) * c.head_dim + 2.0 * c.head_dim_v;
  return {.flops = 2.0 * scores * products / ctas_per_item(c),
          .scores = scores,
          .shared_bytes = c.wide       ? wide_shared_bytes(c)
                          : c.by_roles ? roles_shared_bytes(c)
                                       : joint_shared_bytes(c),
          .sum_bytes = c.by_roles ? 0.0 : kFloat * c.block_m * c.head_dim};
}

/// Bytes that a query of one head has of Q, dO and the sums of dQ in memory: read, read, read and written.
double query_bytes(const AttentionProblem& problem, const backward::Config& config) {
  return kHalf * static_cast<double>(problem.head_dim + problem.head_dim_v) +
         2.0 * static_cast<double>(sum_bytes(problem, config));
}

/// What the main kernel reads and adds to again because L2 does not hold it until then. Items that start together pass
/// over one query head side by side; under a causal mask those of several waves are apart by whole query heads, and
/// each reads for itself.
double bytes_again(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan,
                   double all_steps) {
  constexpr double kHeld = 0.8;   // of L2
  constexpr double kAlone = 0.6;  // of what each item reads for itself
  const backward::Params& params = plan.params;
  const double wave = 1.1 * shape.multiprocessors;
  const double section = params.section_heads;
  const bool one_wave = section * params.n_blocks <= wave;
  const bool apart = plan.config.rule.mask_right && !one_wave;
  const double rows = static_cast<double>(problem.seqlen_q) * query_bytes(problem, plan.config);
  const double in_use = section * rows * (one_wave ? 1.0 : params.part_heads);
  const double missed = std::max(0.0, 1.0 - kHeld * static_cast<double>(shape.l2_bytes) / in_use);
  const double step_bytes = plan.config.block_m * query_bytes(problem, plan.config);
  const double sharing = apart ? 1.0 / kAlone : std::max(1.0, shape.multiprocessors / section);
  return missed * all_steps * step_bytes / sharing;
}

/// LSE and D of every row before the main kernel, zeros where dQ is added up, and what becomes dQ, dK and dV after it.
double seconds_around(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan,
                      double all_steps) {
  const backward::Config& c = plan.config;
  const double rows = gpu::query_rows(problem);
  const double hi_lo = (int{has_hi_lo_lse(c)} + int{has_hi_lo_d(c)}) * 1.0 * kHiLoBytes;
  const double sums = kFloat * static_cast<double>(problem.head_dim);
  const double gradient = kHalf * static_cast<double>(problem.head_dim);
  double bytes = gpu::prepare_bytes(problem, hi_lo + (c.by_roles || c.ordered ? 0.0 : sums));
  if (!c.by_roles && plan.finishes) bytes += rows * (sums + gradient);
  if (c.shares_keys) {
    const double columns = static_cast<double>(problem.head_dim + problem.head_dim_v);
    bytes += gpu::key_rows(problem) * columns * (kFloat * plan.params.key_parts + kHalf);
  }
  double seconds = gpu::memory_seconds(shape, bytes);
  const double scores = all_steps * c.block_m * block_n(c);
  if (c.by_roles) {
    seconds += std::max(gpu::warpgroup_seconds(shape, 2.0 * scores * c.head_dim),
                        gpu::memory_seconds(shape, kHalf * scores + rows * gradient));
  }
  if (problem.wants_d_bias) seconds += gpu::warpgroup_seconds(shape, 2.0 * scores * (c.head_dim + c.head_dim_v));
  return seconds;
}

/// Of all sequences and key heads.
double items_of(const AttentionProblem& mean, const BackwardPlan& plan) {
  const backward::Params& params = plan.params;
  return static_cast<double>(std::max<std::int64_t>(1, mean.batch)) * params.heads_kv * params.key_parts *
         static_cast<double>(gpu::backward_blocks(mean.seqlen_k, block_n(plan.config)));
}

/// Where items are not simulated. `all`: their steps, what they take before and after them included.
double last_steps_of(const DeviceShape& shape, const BackwardPlan& plan, double items, double all, double longest) {
  const double overhead = item_overhead(plan.config, plan.config.shares_keys);
  return gpu::last_steps(items, all, plan.params.part_heads * longest + overhead, shape);
}

/// What is read and written once, with the sums of items that share keys, and dS by roles.
double bytes_once(const AttentionProblem& problem, const BackwardPlan& plan, double all_steps) {
  const backward::Config& c = plan.config;
  const double columns = static_cast<double>(problem.head_dim + problem.head_dim_v);
  const double key_gradients = c.shares_keys ? kFloat * plan.params.key_parts : kHalf;
  const double ds = c.by_roles ? kHalf * all_steps * c.block_m * block_n(c) : 0.0;
  return gpu::query_rows(problem) * query_bytes(problem, c) +
         gpu::key_rows(problem) * columns * (kHalf + key_gradients) + ds;
}

}  // namespace

gpu::PlannedWork backward_work(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan,
                               BackwardSteps by) {
  const backward::Config& c = plan.config;
  gpu::PlannedWork work{.rule = c.rule};
  if (plan.launches.empty() || problem.total_q == 0 || problem.total_k == 0 || problem.heads_q == 0) return work;
  const AttentionProblem mean = gpu::of_mean_lengths(problem);
  const gpu::BlockSteps steps = gpu::steps_of_keys(mean, c.block_m, block_n(c));
  const backward::Params& params = plan.params;
  const double batch = static_cast<double>(std::max<std::int64_t>(1, problem.batch));
  const double all_steps = steps.all * batch * params.heads;
  DeviceShape workers = shape;  // each of an item's own
  workers.multiprocessors /= ctas_per_item(c);
  std::optional<SimulatedOrder> order;
  if (by == BackwardSteps::simulated) order = simulate_order(mean, workers, plan, query_bytes(problem, c));
  work.step = backward_step(c);
  const double items = items_of(mean, plan);
  const double with_overhead = all_steps + items * item_overhead(c, c.shares_keys);
  work.steps = order.has_value() ? order->steps : last_steps_of(workers, plan, items, with_overhead, steps.longest);
  work.filled = std::min(1.0, all_steps / workers.multiprocessors / work.steps);
  // In any order items drift apart further than their numbers of steps say.
  double again = order.has_value() ? (order->read_rows - gpu::query_rows(problem)) * query_bytes(problem, c) : 0.0;
  if (!c.ordered || !order.has_value()) again = std::max(again, bytes_again(mean, workers, plan, all_steps));
  work.memory_bytes = bytes_once(problem, plan, all_steps) + std::max(0.0, again);
  work.around_seconds = seconds_around(problem, shape, plan, all_steps);
  const auto launches = static_cast<int>(plan.launches.size());
  work.launches = 2 + launches * (plan.finishes ? 2 : 1) + int{c.shares_keys};
  work.alone_exponentials = c.ordered || c.by_roles ? kAloneOrdered : kAloneExponentials;
  work.assumes = gpu::assumption(problem);
  return work;
}

}  // namespace strobe::sm90
