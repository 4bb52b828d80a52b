// SPDX-License-Identifier: Apache-2.0
#include "sm90/backward_parts.h"

#include <algorithm>
#include <cmath>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/heads.h"
#include "gpu/plan/backward_plan.h"
#include "gpu/plan/supported.h"
#include "sm90/backward_sections.h"

namespace strobe::sm90 {
namespace {

std::int64_t group_size(const AttentionProblem& problem) {
  return std::max<std::int64_t>(1, heads_per_key_head(problem));
}

/// The time of the main kernel in steps, each of them a block of queries and keys of one query head, if items have
/// `heads` query heads.
class ListSchedule {
 public:
  ListSchedule(const AttentionProblem& problem, const gpu::DeviceShape& shape, const backward::Config& config)
      : problem_(problem), multiprocessors_(shape.multiprocessors), causal_(config.rule.mask_right) {
    const auto mean_blocks = [&](std::int64_t seqlen, std::int64_t total, bool packed, int block) {
      const double rows =
          packed ? static_cast<double>(total) / static_cast<double>(problem.batch) : static_cast<double>(seqlen);
      return std::max(1.0, rows / block);
    };
    longest_ = static_cast<double>(gpu::backward_blocks(problem.seqlen_q, config.block_m));
    const double steps = mean_blocks(problem.seqlen_q, problem.total_q, problem.packed_q, config.block_m);
    mean_ = causal_ ? (steps + 1.0) / 2.0 : steps;
    key_blocks_ = mean_blocks(problem.seqlen_k, problem.total_k, problem.packed_k, block_n(config)) *
                  static_cast<double>(problem.batch * problem.heads_kv);
    for (const bool shares : {false, true}) overhead_[int{shares}] = item_overhead(config, shares);
  }

  double steps(std::int64_t heads) const {
    const std::int64_t parts = key_parts(problem_, {heads});
    const double around = overhead_[int{parts > 1}];
    const double items = key_blocks_ * static_cast<double>(parts);
    const double longest = static_cast<double>(heads) * longest_ + around;
    if (!causal_) return std::ceil(items / multiprocessors_) * longest;
    const double mean_heads = static_cast<double>(group_size(problem_)) / static_cast<double>(parts);
    const double all = items * (mean_heads * mean_ + around) / multiprocessors_;
    return std::cbrt(all * all * all + longest * longest * longest);  // the larger one, or of equal ones more
  }

 private:
  const AttentionProblem& problem_;
  double multiprocessors_;
  bool causal_;
  double longest_, mean_;  // steps of an item for each of its query heads
  double key_blocks_;      // of all key heads
  double overhead_[2];     // of an item; of one that shares keys
};

/// At 64 columns in order: query heads whose rows L2 should hold, else items have two. log: bwd-ordered-grouped
constexpr std::int64_t kLongHeads = 4;

/// Under a causal mask items drift apart by whole query heads, and what they read leaves L2 in between: at most four,
/// and two where the rows of one query head do not fit L2. Where sums of dQ are added to in order, items of different
/// lengths would wait for each other, and at 128 of rows that do not fit L2 parts read more. log: bwd-part-heads,
/// bwd-parts-ordered-long, bwd-ordered-grouped
std::int64_t most_heads(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                        const backward::Config& config) {
  const std::int64_t all = group_size(problem);
  if (!config.rule.mask_right) return all;
  AttentionProblem one = problem;
  one.heads_q = one.heads_kv;
  const std::int64_t held = gpu::key_heads_in_l2(one, shape, sum_bytes(one, config));
  if (config.ordered && config.head_dim <= 64 && all % 2 == 0 && held < kLongHeads) return 2;
  if (all <= 4) return all;
  const std::int64_t most = held == 0 ? 2 : 4;
  if (!config.ordered) return most;
  if (most == 2) return all;
  for (std::int64_t heads = most; heads > 1; --heads) {
    if (all % heads == 0) return heads;
  }
  return all;
}

}  // namespace

// log: bwd-part-heads
double item_overhead(const backward::Config& config, bool shares_keys) {
  const double shared = 10.0 * block_n(config) / 128 * (config.head_dim + config.head_dim_v) / 256;
  return shares_keys ? shared : 0.4 * shared;
}

bool takes_parts(const AttentionProblem& problem, const backward::Config& config) {
  if (config.rule.block_mask != 0 || config.wide || problem.total_q == 0 || heads_per_key_head(problem) < 2)
    return false;
  // One for each query head, at most; of 64 keys in the kernel that adds up.
  const Checked items = Checked(gpu::backward_blocks(problem.seqlen_k, kRowsPerWarpgroup)) * problem.heads_q;
  return (items * gpu::backward_batch(problem)).at_most(gpu::kMaxInt);
}

PartHeads part_heads(const AttentionProblem& problem, const gpu::DeviceShape& shape, const backward::Config& config,
                     int wanted) {
  const std::int64_t all = group_size(problem);
  if (!takes_parts(problem, config)) return {all};
  if (wanted > 0 && wanted <= all && (!config.ordered || all % wanted == 0)) return {wanted};
  // Windows were not measured. Without query or key rows nothing is computed.
  if (config.rule.mask_left || problem.total_k == 0) return {all};
  const ListSchedule schedule(problem, shape, config);
  const std::int64_t most = most_heads(problem, shape, config);
  std::int64_t chosen = 0;
  double least = 0.0;
  for (std::int64_t parts = ceil_div(all, most); parts <= all; ++parts) {
    const std::int64_t heads = ceil_div(all, parts);
    if (config.ordered && all % heads != 0) continue;
    const double steps = schedule.steps(heads);
    if (chosen != 0 && steps > 0.9 * least) continue;  // smaller ones take memory, and the model has errors
    chosen = heads;
    least = steps;
  }
  return {chosen};
}

PartHeads fitting_heads(const AttentionProblem& problem, const backward::Config& config, PartHeads wanted) {
  const std::int64_t all = group_size(problem);
  return {takes_parts(problem, config) ? std::clamp<std::int64_t>(wanted.count, 1, all) : all};
}

std::int64_t key_parts(const AttentionProblem& problem, PartHeads heads) {
  return ceil_div(group_size(problem), heads.count);
}

AttentionProblem with_parts_as_heads(const AttentionProblem& problem, PartHeads heads) {
  AttentionProblem parts = problem;
  parts.heads_kv = problem.heads_kv * key_parts(problem, heads);
  parts.heads_q = parts.heads_kv * heads.count;
  return parts;
}

}  // namespace strobe::sm90
