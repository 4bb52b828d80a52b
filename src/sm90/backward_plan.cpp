// SPDX-License-Identifier: Apache-2.0
#include "sm90/backward_plan.h"

#include <algorithm>
#include <initializer_list>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/heads.h"
#include "gpu/auxiliary/backward_variant.h"
#include "gpu/params/score.h"
#include "gpu/plan/backward_plan.h"
#include "gpu/plan/faster_plan.h"
#include "kernels/sequence/query_blocks.h"
#include "kernels/sm90/backward/capture_gradient/config.h"
#include "kernels/sm90/backward/variants.h"
#include "kernels/sm90/backward/wide/smem.h"
#include "sm90/backward_sections.h"
#include "sm90/backward_tiles.h"
#include "sm90/supported.h"
#include "sm90/times.h"

namespace strobe::sm90 {
namespace {

backward::QueryGradientConfig query_config(const backward::Config& config) {
  backward::QueryGradientConfig query;
  query.rule = config.rule;
  constexpr int kMostColumns = 256;  // that two warpgroups' registers hold of 64 queries each
  query.column_parts = config.head_dim > kMostColumns ? 2 : 1;
  query.head_dim = config.head_dim / query.column_parts;
  query.block_m = config.block_m;
  query.consumer_warpgroups = config.rule.block_mask == backward::kScoreTile ? 1 : 2;  // log: bwd-roles-192-queries
  query.debug = config.debug;
  return query;
}

/// Shares `total` out in as few parts of at most `most` as there can be, all but the last as large.
std::int64_t even_part(std::int64_t total, std::int64_t most) {
  return ceil_div<std::int64_t>(total, ceil_div<std::int64_t>(total, std::clamp<std::int64_t>(most, 1, total)));
}

/// As many key heads a launch as hold their dS within `limits`, or parts of one head's keys.
std::vector<BackwardLaunch> launches_by_roles(const BackwardPlan& plan, std::int64_t heads, const DeviceShape& shape,
                                              const ScoreGradientLimits& limits) {
  const backward::Params& params = plan.params;
  const Checked head_bytes = backward::score_gradient_bytes(params.m_blocks, 1, plan.config.block_m);
  const auto block_bytes = (head_bytes * params.heads_per_kv).value<std::size_t>();
  if (block_bytes == 0) return {{0, static_cast<int>(heads), 0, params.n_blocks}};
  const auto wave_bytes = (Checked(shape.multiprocessors) * block_bytes).value<std::size_t>();
  const std::size_t limit = std::max(limits.bytes, std::min(wave_bytes, limits.most_bytes));
  const auto most_blocks = static_cast<std::int64_t>(limit / block_bytes);
  const std::int64_t launch_heads = even_part(heads, most_blocks / params.n_blocks);
  const std::int64_t launch_blocks = even_part(params.n_blocks, most_blocks);
  std::vector<BackwardLaunch> launches;
  for (std::int64_t head = 0; head < heads; head += launch_heads) {
    for (std::int64_t block = 0; block < params.n_blocks; block += launch_blocks) {
      launches.push_back({.first_head_kv = static_cast<int>(head),
                          .heads_kv = static_cast<int>(std::min(launch_heads, heads - head)),
                          .first_key_block = static_cast<int>(block),
                          .key_blocks = static_cast<int>(std::min(launch_blocks, params.n_blocks - block))});
    }
  }
  return launches;
}

/// What the kernels know of items that share blocks of keys.
void set_parts(const AttentionProblem& problem, PartHeads heads, BackwardPlan& plan) {
  backward::Params& params = plan.params;
  params.part_heads = static_cast<int>(heads.count);
  params.key_parts = static_cast<int>(key_parts(problem, heads));
  plan.config.shares_keys = params.key_parts > 1;
  params.key_sum_blocks =
      sequence::query_blocks(problem.packed_k, static_cast<int>(problem.batch), static_cast<int>(problem.seqlen_k),
                             static_cast<int>(problem.total_k), block_n(plan.config));
}

BackwardWorkspace workspace_of(const AttentionProblem& problem, const BackwardPlan& plan) {
  const backward::Config& config = plan.config;
  const backward::Params& params = plan.params;
  BackwardWorkspace workspace;
  const auto take = [&](Checked bytes) { return workspace.take(bytes); };
  const Checked row_bytes = workspace.take_rows(problem, params, config.block_m);
  if (config.shares_keys) {
    const Checked bytes = 4 * Checked(params.heads_kv) * params.key_parts * params.key_sum_blocks * block_n(config);
    workspace.dk_sums = take(bytes * config.head_dim);
    workspace.dv_sums = take(bytes * config.head_dim_v);
  }
  if (has_hi_lo_lse(config)) workspace.lse_hi_lo = take(row_bytes / 4 * kHiLoBytes);
  if (has_hi_lo_d(config)) workspace.d_hi_lo = take(row_bytes / 4 * kHiLoBytes);
  if (!config.by_roles) {
    if (config.ordered)
      workspace.dq_semaphores = take(4 * Checked(backward::semaphore_count(params.heads, params.query_blocks)));
    workspace.dq_sum = take(row_bytes * config.head_dim);
    return workspace;
  }
  const BackwardLaunch& largest = plan.launches.front();
  const Checked launch_heads = Checked(largest.heads_kv) * params.heads_per_kv;
  workspace.ds =
      take(launch_heads * backward::score_gradient_bytes(params.m_blocks, largest.key_blocks, config.block_m));
  if (largest.key_blocks < params.n_blocks) {
    workspace.dq_before = take(4 * launch_heads * params.m_blocks * config.block_m * config.head_dim);
  }
  return workspace;
}

/// Whether a kernel after the main one has something to do: by roles all of dQ, else what it may have left out.
bool finishes(const AttentionProblem& problem, const backward::Config& config) {
  if (problem.total_q == 0 || problem.heads_q == 0) return false;
  return config.by_roles || !config.ordered || is_masked(config.rule) || config.rule.varlen || problem.seqlen_k == 0;
}

/// Stages of a bias that TMA brings, and of P and dS beside it.
struct BiasStages {
  int narrow_bias;  // of heads of up to 64 columns and a bias of 16 bits; others have one stage
  int p, ds;
};

/// In order of preference: the first that fits shared memory. log: bwd-dropout-roles
constexpr BiasStages kBiasStages[] = {{2, 2, 2}, {2, 1, 2}, {2, 1, 1}};

/// Calls whose tiles the model compares: of the joint design with 64 queries a step, without a mask or causal, of
/// sequences of one length, without options. By roles at 64 columns more is lost than the model says.
/// log: bwd-roles-d128-d64
bool compares_tiles(const AttentionProblem& problem, const backward::Config& rule) {
  const ScoreRule plain{.element = rule.rule.element, .mask_right = rule.rule.mask_right};
  return rule.rule == plain && !rule.by_roles && rule.block_m == kRowsPerWarpgroup && problem.total_q > 0 &&
         problem.total_k > 0 && problem.heads_q > 0;
}

/// Whether short sequences of grouped heads of more than 64 columns take less time by roles, with 128 queries a step:
/// items of the joint design are few, and those that share a key head's queries are summed by a kernel more. Of fewer
/// items still, parts of a key head's queries are more. Smaller groups were not measured. log: bwd-roles-grouped-short
bool gains_by_roles(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& rule,
                    Checked items) {
  constexpr std::int64_t kLeastGroup = 4;
  constexpr std::int64_t kLeastKeys = 512, kMostKeys = 1024;
  if (heads_per_key_head(problem) < kLeastGroup || std::min(rule.head_dim, rule.head_dim_v) <= 64) return false;
  if (problem.seqlen_k < kLeastKeys || problem.seqlen_k > kMostKeys) return false;
  if (items.at_most(shape.multiprocessors / 5)) return false;
  return items.at_most(rule.rule.mask_right ? 2 * shape.multiprocessors : shape.multiprocessors / 2);
}

/// The rule's variant, or one of more items where the rule's leave multiprocessors idle and these are predicted to be
/// faster: the model favours kernels by roles, by up to a half. log: idle-device-tiles
backward::Config with_faster_tiles(const AttentionProblem& problem, const DeviceShape& shape,
                                   const backward::Config& rule) {
  constexpr double kMargin = 1.5;
  if (!compares_tiles(problem, rule)) return rule;
  const Checked items =
      Checked(gpu::backward_blocks(problem.seqlen_k, block_n(rule))) * gpu::backward_key_heads(problem);
  if (!gpu::has_few_tiles(items, shape)) return rule;
  if (gains_by_roles(problem, shape, rule, items)) {
    for (const backward::Config& other : tile_choices(problem)) {
      if (other.by_roles && other.block_m > kRowsPerWarpgroup) return other;
    }
  }
  const auto work_of = [&](const backward::Config& config) {
    return backward_work(problem, shape, backward_plan(problem, shape, config), BackwardSteps::by_formula);
  };
  const gpu::PlannedWork work = work_of(rule);
  if (!gpu::leaves_idle(work)) return rule;
  gpu::FasterPlan faster(gpu::predicted_times(shape, work).seconds(), kMargin);
  backward::Config chosen = rule;
  for (const backward::Config& other : tile_choices(problem)) {
    if (block_n(other) >= block_n(rule) || other.block_m > rule.block_m) continue;
    if (faster.takes(gpu::predicted_times(shape, work_of(other)).seconds())) chosen = other;
  }
  return chosen;
}

}  // namespace

Result<backward::Config> backward_config(const AttentionProblem& problem, const DeviceShape& shape,
                                         const gpu::Choice& choice) {
  if (Status status = check_supported(problem); !status.ok()) return status;
  backward::Config config = with_tiles(problem, choice);
  if (!choice.has_tiles()) config = with_faster_tiles(problem, shape, config);
  for (const auto& [blocks, rows, what] :
       {std::tuple{Checked(gpu::backward_blocks(problem.seqlen_q, config.block_m)) * problem.heads_q, config.block_m,
                   "query"},
        std::tuple{Checked(gpu::backward_blocks(problem.seqlen_k, block_n(config))) * problem.heads_kv, block_n(config),
                   "key"}}) {
    const std::int64_t tiles = (blocks * gpu::backward_batch(problem)).value();
    if (tiles > kMaxInt / ctas_per_item(config)) {
      return unsupported("{} backward tiles of {} {} rows: the sm90 kernels take up to {}", tiles, rows, what,
                         kMaxInt / ctas_per_item(config));
    }
  }
  if (problem.wants_d_bias) {
    const Checked blocks = Checked(gpu::backward_blocks(problem.seqlen_q, config.block_m)) *
                           gpu::backward_blocks(problem.seqlen_k, block_n(bias_gradient_config(config)));
    const std::int64_t tiles = (blocks * gpu::bias_planes(problem)).value();
    if (tiles > kMaxInt) {
      return unsupported("{} tiles of d_bias: the sm90 kernels take up to {}", tiles, kMaxInt);
    }
  }
  if (problem.expression.gradients != 0) {
    const int query_blocks = static_cast<int>(gpu::backward_blocks(problem.seqlen_q, config.block_m));
    const auto key_blocks =
        gpu::backward_blocks(problem.seqlen_k, block_n(capture_gradient_config(config, problem.deterministic)));
    const Checked of_head =
        backward::walks_of_head(query_blocks, backward::bias_key_tiles(static_cast<int>(key_blocks)));
    const std::int64_t walks = (of_head * problem.batch * problem.heads_q).value();
    if (walks > kMaxInt) {
      return unsupported("{} walks over tiles of d_captures: the sm90 kernels take up to {}", walks, kMaxInt);
    }
  }
  return config;
}

std::optional<backward::Config> aligned_bias_config(const AttentionProblem& problem, const backward::Config& config) {
  const ScoreRule& rule = config.rule;
  if (!rule.bias || rule.block_mask != 0 || config.wide || problem.seqlen_q == 0 || problem.seqlen_k == 0) {
    return std::nullopt;
  }
  const bool is_narrow = std::max(config.head_dim, config.head_dim_v) <= 64 && !rule.bias_float32;
  for (const BiasStages& stages : kBiasStages) {
    backward::Config aligned = config;
    aligned.bias_stages = is_narrow ? stages.narrow_bias : 1;
    aligned.p_stages = stages.p;
    aligned.ds_stages = stages.ds;
    if (smem_plan(aligned).total_bytes <= kMaxSmemBytes) return aligned;
  }
  return std::nullopt;
}

backward::Config bias_gradient_config(const backward::Config& config) {
  backward::Config gradient = config;
  gradient.by_roles = true;                                // steps of 64 keys, and rows of LSE and D as they are
  gradient.bias_stages = std::min(config.bias_stages, 1);  // it keeps one tile's
  gradient.shares_keys = false;
  return gradient;
}

backward::Config capture_gradient_config(const backward::Config& config, bool ordered) {
  backward::Config gradient = bias_gradient_config(config);
  gradient.bias_stages = 0;
  gradient.captures = true;
  gradient.alternates = gradient.dp_ahead = false;  // one for all ways to dQ
  gradient.ordered = ordered;
  return gradient;
}

backward::Config query_sums_config(backward::Config config) {
  config.shares_keys = false;
  return config;
}

BackwardPlan backward_plan(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config,
                           const gpu::Choice& choice) {
  return backward_plan(problem, shape, config,
                       BackwardChoices{.limits = {},
                                       .heads = part_heads(problem, shape, config, choice.part_heads),
                                       .section_heads = choice.section_heads});
}

BackwardPlan backward_plan(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config,
                           const BackwardChoices& choices) {
  BackwardPlan plan;
  plan.config = config;
  plan.prepare = gpu::prepare_config(problem, config.rule);
  plan.query = query_config(config);
  backward::Params& params = plan.params;
  static_cast<BackwardParams&>(params) = gpu::planned_params(problem, config.block_m, block_n(config));
  params.row_groups = auxiliary::large_row_groups(params.m_blocks, config.block_m);
  const std::int64_t heads = gpu::backward_key_heads(problem);
  if (heads == 0 || ((problem.total_q == 0 || problem.heads_q == 0) && problem.total_k == 0)) return plan;
  const PartHeads part = fitting_heads(problem, config, choices.heads);
  set_parts(problem, part, plan);
  params.section_heads = static_cast<int>(
      section_heads(with_parts_as_heads(problem, part), shape, config, params.n_blocks, choices.section_heads));
  plan.launches = config.by_roles ? launches_by_roles(plan, heads, shape, choices.limits)
                                  : std::vector<BackwardLaunch>{{0, static_cast<int>(heads), 0, params.n_blocks}};
  plan.finishes = finishes(problem, config);
  plan.workspace = workspace_of(problem, plan);
  return plan;
}

std::string explain(const AttentionProblem& problem, const BackwardPlan& plan) {
  const backward::Config& c = plan.config;
  std::string text = gpu::explain_tiles(problem, block_n(c), c.block_m, c.head_dim, c.head_dim_v);
  text += c.wide       ? "warpgroups    in each of two CTAs 1 producer, 1 for scores, 2 for dV or dK\n"
          : c.by_roles ? "warpgroups    1 producer, 1 for P and dV, 1 for dS and dK\n"
                       : "warpgroups    1 producer, 2 for dV and dK of 64 keys each, 1 for dQ\n";
  text += c.wide ? fmt::format("pipeline      {} stages of 64 columns for scores, {} of half the columns for sums\n",
                               c.q_stages, c.do_stages)
                 : fmt::format("pipeline      {} stages of Q, {} of dO\n", c.q_stages, c.do_stages);
  text += fmt::format("shared memory {} of {} bytes\n", main_smem_bytes(c), kMaxSmemBytes);
  text += c.by_roles  ? "dQ            by a kernel of its own from dS: the same bits every time\n"
          : c.ordered ? "dQ            sums in float32 that blocks of keys add to in order: the same bits every time\n"
                      : "dQ            sums in float32 that blocks of keys add to in any order\n";
  if (!plan.launches.empty()) text += gpu::explain_sections(problem, plan.params.section_heads, plan.params.key_parts);
  if (c.alternates) text += "order         every second section of items begins with its shortest\n";
  if (problem.wants_d_bias) {
    text += c.dp_ahead ? "d_bias        dP's product runs under the softmax\n"
                       : "d_bias        dP's product after the softmax\n";
  }
  if (c.shares_keys) {
    text += fmt::format("key heads     {} of {} query heads an item, {} items share a block of keys\n",
                        plan.params.part_heads, plan.params.heads_per_kv, plan.params.key_parts);
  }
  std::size_t kernels = plan.launches.empty() ? 0 : 2 + (plan.finishes ? 2 : 1) * plan.launches.size();
  if (c.shares_keys && kernels > 0) ++kernels;
  text += fmt::format("launches      {}\n", kernels);
  return text;
}

}  // namespace strobe::sm90
