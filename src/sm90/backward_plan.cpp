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
#include "kernels/sequence/query_blocks.h"
#include "kernels/sm90/backward/capture_gradient/config.h"
#include "kernels/sm90/backward/variants.h"
#include "kernels/sm90/backward/wide/smem.h"
#include "sm90/backward_sections.h"
#include "sm90/supported.h"
#include "sm90/wide_backward_tiles.h"
#include "sm90/wide_tiles.h"

namespace strobe::sm90 {
namespace {

/// Of the rule, what gradients depend on.
ScoreRule backward_rule(const AttentionProblem& problem) {
  ScoreRule rule = backward::kernel_rule(gpu::score_rule(problem));
  if (takes_scores(rule)) return rule;
  if (rule.alibi || (!rule.softcap && problem.scale < kLeastHiLoScale)) rule.scale_first = true;
  return rule;
}

/// Whether the joint design has registers for these where the same bits are wanted every time.
bool can_order_sums(const backward::Config& config) {
  const ScoreRule& rule = config.rule;
  if (rule.alibi || rule.block_mask != 0 || has_text(rule)) return false;
  if (query_gradient_parts(config) != backward::kOrderedParts) return false;
  return !rule.varlen || (rule.mask_right && config.head_dim <= 64);
}

/// Whether it takes them: at 128 under a causal mask blocks of short sequences wait for each other too long, the more
/// so of grouped heads. log: bwd-ordered-causal-128, bwd-ordered-grouped
bool orders_sums(const AttentionProblem& problem, const backward::Config& config) {
  const std::int64_t long_enough = heads_per_key_head(problem) > 1 ? kLongCausal : 1024;
  const bool waits_long = config.rule.mask_right && config.head_dim > 64 && problem.seqlen_k < long_enough;
  return can_order_sums(config) && !waits_long;
}

/// Whether sums in order take less time than in any: under a causal mask at 64 columns, of long sequences with so many
/// blocks of keys that few wait for one another. Other rules were not measured. log: bwd-ordered-default
bool gains_by_order(const AttentionProblem& problem, const backward::Config& config) {
  const bool is_plain = config.rule == ScoreRule{.element = config.rule.element, .mask_right = true};
  if (!is_plain || std::max(config.head_dim, config.head_dim_v) > 64 || heads_per_key_head(problem) > 1) return false;
  constexpr std::int64_t kLeastBlocks = 1024;
  constexpr std::int64_t kBlock = 128;
  const Checked blocks = Checked(problem.batch) * problem.heads_q * (problem.seqlen_k / kBlock);
  return std::min(problem.seqlen_q, problem.seqlen_k) >= kLongCausal && !blocks.at_most(kLeastBlocks - 1);
}

bool adds_in_order(const AttentionProblem& problem, const backward::Config& config) {
  return problem.deterministic || gains_by_order(problem, config);
}

/// What the problem asks for, before its tiles.
backward::Config call_config(const AttentionProblem& problem) {
  backward::Config config;
  config.rule = backward_rule(problem);
  config.wide = has_wide_heads(problem);
  const auto compiled = config.wide ? backward::compiled_wide_head_dim : backward::compiled_head_dim;
  config.head_dim = compiled(static_cast<int>(problem.head_dim));
  config.head_dim_v = compiled(static_cast<int>(problem.head_dim_v));
  return config;
}

/// A way to cut a CTA's work.
struct BackwardTiles {
  bool by_roles;
  int most_head_dim;  // of Q and K, and of V
  int block_m;
  int stages;      // of Q, and of dO
  bool staged_dq;  // in any order; in order the sums are always staged, and with a softcap at 64 columns never else
};

/// In order of preference. By roles there are the same bits every time, and all rules fit the registers.
constexpr BackwardTiles kBackwardTiles[] = {
    {.by_roles = false, .most_head_dim = 64, .block_m = 128, .stages = 3, .staged_dq = false},  // log: bwd-y
    {.by_roles = false,
     .most_head_dim = 128,
     .block_m = 64,
     .stages = 3,
     .staged_dq = true},  // log: bwd-y, bwd-x-staged, bwd-d64-options
    {.by_roles = true,
     .most_head_dim = 128,
     .block_m = 128,
     .stages = 2,
     .staged_dq = false},  // log: bwd-roles-d128-d64
    {.by_roles = true, .most_head_dim = 256, .block_m = 64, .stages = 2, .staged_dq = false}};  // log: bwd-roles

backward::Config with(backward::Config config, const BackwardTiles& tiles, bool in_order) {
  if (config.wide) return with_wide_tiles(config);
  config.by_roles = tiles.by_roles;
  config.block_m = tiles.block_m;
  config.q_stages = config.do_stages = tiles.stages;
  config.ordered = in_order && !tiles.by_roles;
  const bool from_registers = config.rule.softcap && config.head_dim <= 64;  // log: bwd-d64-options
  config.staged_dq = (tiles.staged_dq && !from_registers) || config.ordered;
  // With used lengths nobody knows which items are the shortest; at 128 it does not pay. log: bwd-ordered-causal-128
  config.alternates = config.ordered && config.rule.mask_right && !config.rule.varlen && config.head_dim <= 64;
  config.dp_ahead = config.rule.bias && !config.rule.softcap &&
                    !takes_scores(config.rule);  // as registers allow, and compiling shows
  return config;
}

/// Whether these tiles serve the problem, and fit registers and shared memory. `asked_for`: where the same bits are
/// wanted, however long blocks of keys wait for each other.
bool takes(const AttentionProblem& problem, const backward::Config& config, const BackwardTiles& tiles,
           bool asked_for) {
  const ScoreRule& rule = config.rule;
  if (config.wide) return tiles.by_roles && tiles.block_m == config.block_m;
  if (std::max(config.head_dim, config.head_dim_v) > tiles.most_head_dim) return false;
  if (rule.block_mask % tiles.block_m != 0) return false;
  if (problem.expression.gradients != 0 && tiles.block_m > kRowsPerWarpgroup) return false;  // for lack of registers
  if (!tiles.by_roles) {
    if (!backward::joint_takes(rule, config.head_dim, config.head_dim_v, config.block_m)) return false;
    if (config.ordered && rule.text.score && config.head_dim > 64) return false;  // for lack of registers
    if (problem.deterministic && !(asked_for ? can_order_sums(config) : orders_sums(problem, config))) return false;
  }
  return smem_plan(config).total_bytes <= kMaxSmemBytes;
}

/// The first candidate that takes the problem, or the one that is asked for. The last one takes all that the engine
/// does.
backward::Config choose_tiles(const AttentionProblem& problem, const backward::Config& config,
                              const gpu::Choice& choice) {
  for (const backward::Config& tiles : choice.has_tiles() ? tile_choices(problem) : std::vector<backward::Config>()) {
    if (choice.wants(tiles.block_m, block_n(tiles), 1)) return tiles;
  }
  const bool in_order = adds_in_order(problem, config);
  backward::Config chosen = config;
  for (const BackwardTiles& tiles : kBackwardTiles) {
    chosen = with(config, tiles, in_order);
    if (takes(problem, chosen, tiles, false)) break;
  }
  return chosen;
}

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

}  // namespace

Result<backward::Config> backward_config(const AttentionProblem& problem, const gpu::Choice& choice) {
  if (Status status = check_supported(problem); !status.ok()) return status;
  const backward::Config config = choose_tiles(problem, call_config(problem), choice);
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

std::vector<backward::Config> tile_choices(const AttentionProblem& problem) {
  const backward::Config call = call_config(problem);
  const bool in_order = adds_in_order(problem, call);
  std::vector<backward::Config> choices;
  bool has_joint = false;  // the joint design has one way for each head_dim and rule
  for (const BackwardTiles& tiles : kBackwardTiles) {
    const backward::Config config = with(call, tiles, in_order);
    if (!takes(problem, config, tiles, true) || (has_joint && !tiles.by_roles)) continue;
    has_joint = has_joint || !tiles.by_roles;
    choices.push_back(config);
  }
  return choices;
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
