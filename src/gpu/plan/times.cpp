// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "call/visible_keys.h"

namespace strobe::gpu {
namespace {

// What kernels reach of the rates that the highest clock gives. log: predicted-times
constexpr double kWarpgroupShare = 0.76;  // as large matrix products: what the power allows
constexpr double kClockShare = 0.85;      // of the clock, beside such products
constexpr double kMemoryShare = 0.9;

constexpr double kFirstLaunch = 3e-6;
constexpr double kNextLaunch = 2e-6;

/// Seconds that the multiprocessor's units take for a step each.
struct StepSeconds {
  double products, exponentials, shared_memory, sums;
};

/// FLOPs a second of one multiprocessor. Where a card has a share of the products, power does not limit them further.
double flops_per_second(const DeviceShape& shape, Products by) {
  const UnitRates rates = unit_rates(shape);
  const double share = std::min(1.0, kWarpgroupShare / shape.product_share);
  switch (by) {
    case Products::mma: return shape.clock * rates.products;
    case Products::warpgroup: return shape.clock * share * rates.warpgroup_products;
    case Products::eight_bit: return shape.clock * share * rates.products_8bit;
    case Products::tf32: return shape.clock * rates.products_tf32 / 3.0;
  }
  return 0.0;
}

/// Clocks of a score's softmax: an exponential, and what is computed beside it.
double score_clocks(const UnitRates& rates, const ScoreRule& rule) {
  constexpr double kPlain = 4.0;  // the maximum, the difference, the sum, and half a conversion of two
  const int exponentials = 1 + int{rule.softcap};
  const double instructions =
      kPlain + 3.0 * int{rule.softcap} + int{rule.alibi} + 2.0 * int{rule.bias} + 12.0 * int{rule.dropout};
  return exponentials / rates.exponentials + instructions / rates.arithmetic;
}

StepSeconds step_seconds(const DeviceShape& shape, const ScoreRule& rule, const StepWork& step) {
  const UnitRates rates = unit_rates(shape);
  const double clock = kClockShare * shape.clock;
  return {.products = step.flops / flops_per_second(shape, step.by),
          .exponentials = step.scores * score_clocks(rates, rule) / clock,
          .shared_memory = step.shared_bytes / rates.shared_bytes / clock,
          .sums = step.sum_bytes / rates.sum_bytes / clock};
}

double mean_of(std::int64_t total, std::int64_t batch, std::int64_t longest) {
  return static_cast<double>(std::min(longest, (total + batch - 1) / std::max<std::int64_t>(1, batch)));
}

}  // namespace

double PredictedTimes::seconds() const {
  return std::max({in_turn, exponentials, shared_memory, sums, memory}) + around;
}

PredictedTimes predicted_times(const DeviceShape& shape, const PlannedWork& work) {
  const StepSeconds step = step_seconds(shape, work.rule, work.step);
  PredictedTimes times{.products = work.steps * step.products,
                       .exponentials = work.steps * step.exponentials,
                       .shared_memory = work.steps * step.shared_memory,
                       .sums = work.steps * step.sums,
                       .memory = memory_seconds(shape, work.memory_bytes),
                       .around = work.around_seconds + kFirstLaunch + kNextLaunch * (work.launches - 1)};
  times.in_turn =
      times.products + work.alone_exponentials * times.exponentials + work.alone_shared_memory * times.shared_memory;
  const std::pair<double, std::string_view> units[] = {
      {times.in_turn, work.alone_exponentials > 0.0 ? "products and what waits for them" : "products"},
      {times.exponentials, "exponentials"},
      {times.shared_memory, "shared memory"},
      {times.sums, "sums in L2"},
      {times.memory, "memory"},
      {times.around, "what is before and after"}};
  times.bound_by = std::ranges::max_element(units, {}, &std::pair<double, std::string_view>::first)->second;
  return times;
}

double memory_seconds(const DeviceShape& shape, double bytes) {
  return bytes / (kMemoryShare * shape.memory_bandwidth);
}

double warpgroup_seconds(const DeviceShape& shape, double flops) {
  return flops / flops_per_second(shape, Products::warpgroup) / shape.multiprocessors;
}

double last_steps(double tiles, double all, double longest, const DeviceShape& shape) {
  const double multiprocessors = shape.multiprocessors;
  constexpr double kShorter = 1.05;  // where the last rows of a sequence leave a tile less to do
  const bool as_long = tiles * longest <= all * kShorter;
  if (as_long) return std::ceil(tiles / multiprocessors) * longest;
  const double even = all / multiprocessors;
  return std::cbrt(even * even * even + longest * longest * longest);  // the larger one, or of equal ones more
}

AttentionProblem of_mean_lengths(AttentionProblem problem) {
  const std::int64_t batch = std::max<std::int64_t>(1, problem.batch);
  if (problem.packed_q) problem.seqlen_q = static_cast<std::int64_t>(mean_of(problem.total_q, batch, problem.seqlen_q));
  if (problem.packed_k) problem.seqlen_k = static_cast<std::int64_t>(mean_of(problem.total_k, batch, problem.seqlen_k));
  return problem;
}

std::string_view assumption(const AttentionProblem& problem) {
  if (problem.modifiers.block_size != 0) return "if the mask shows all blocks";
  if (problem.has_seqused_q || problem.has_seqused_k) return "if sequences are as long as they may be";
  return problem.packed_q || problem.packed_k ? "if sequences are equally long" : "";
}

void BlockSteps::add(std::int64_t begin, std::int64_t end, int block) {
  const std::int64_t past = (end + block - 1) / block;
  const auto blocks = static_cast<double>(std::max<std::int64_t>(0, past - begin / block));
  all += blocks;
  longest = std::max(longest, blocks);
}

double query_rows(const AttentionProblem& problem) {
  return static_cast<double>(problem.total_q) * static_cast<double>(problem.heads_q);
}

double key_rows(const AttentionProblem& problem) {
  return static_cast<double>(problem.total_k) * static_cast<double>(problem.heads_kv);
}

double element_bytes(const AttentionProblem& problem) { return static_cast<double>(size_of(problem.dtype)); }

double query_row_bytes(const AttentionProblem& problem) {
  constexpr double kLseBytes = 4.0;
  const double output_bytes = static_cast<double>(size_of(output_dtype(problem)));
  return query_rows(problem) * (element_bytes(problem) * static_cast<double>(problem.head_dim) +
                                output_bytes * static_cast<double>(problem.head_dim_v) + kLseBytes);
}

double key_row_bytes(const AttentionProblem& problem) {
  const VisibleKeys visible = visible_keys(problem);
  const std::int64_t seen =
      problem.seqlen_q == 0 ? 0 : std::max<std::int64_t>(0, visible.end(problem.seqlen_q - 1) - visible.begin(0));
  const double rows =
      static_cast<double>(problem.batch) * static_cast<double>(seen) * static_cast<double>(problem.heads_kv);
  return rows * static_cast<double>(size_of(stored_dtype(problem))) *
         static_cast<double>(problem.head_dim + problem.head_dim_v);
}

double prepare_bytes(const AttentionProblem& problem, double more) {
  constexpr double kRowNumbers = 4 * 4.0;  // LSE read; LSE, D and the maximum written
  const double columns = 2.0 * static_cast<double>(problem.head_dim_v);
  return query_rows(problem) * (columns * element_bytes(problem) + kRowNumbers + more);
}

BlockSteps steps_of_keys(const AttentionProblem& problem, int block_m, int block_n) {
  const VisibleKeys visible = visible_keys(problem);
  BlockSteps steps;
  for (std::int64_t key = 0; key < problem.seqlen_k; key += block_n) {
    const std::int64_t last = std::min(key + block_n, problem.seqlen_k) - 1;
    steps.add(visible.first_position(key, problem.seqlen_q), visible.last_position(last, problem.seqlen_q), block_m);
  }
  return steps;
}

BlockSteps steps_of_queries(const AttentionProblem& problem, int block_m, int block_n) {
  const VisibleKeys visible = visible_keys(problem);
  BlockSteps steps;
  for (std::int64_t row = 0; row < problem.seqlen_q; row += block_m) {
    const std::int64_t last = std::min(row + block_m, problem.seqlen_q) - 1;
    steps.add(visible.begin(row), visible.end(last), block_n);
  }
  return steps;
}

std::string explain_times(const DeviceShape& shape, const PlannedWork& work) {
  if (work.steps == 0.0) return {};
  const PredictedTimes times = predicted_times(shape, work);
  const auto ms = [](double seconds) { return fmt::format("{:.3g}", 1e3 * seconds); };
  std::string text = fmt::format("time          {} ms predicted{}{}, bound by {}: products {}, exponentials {}",
                                 ms(times.seconds()), work.assumes.empty() ? "" : " ", work.assumes, times.bound_by,
                                 ms(times.products), ms(times.exponentials));
  text += fmt::format(", shared memory {}", ms(times.shared_memory));
  if (times.sums > 0.0) text += fmt::format(", sums in L2 {}", ms(times.sums));
  return text + fmt::format(", memory {}, before and after {} ms\n", ms(times.memory), ms(times.around));
}

}  // namespace strobe::gpu
