// SPDX-License-Identifier: Apache-2.0
#include "sm90/backward_tiles.h"

#include <algorithm>

#include "call/checked.h"
#include "call/heads.h"
#include "gpu/params/score.h"
#include "kernels/sm90/backward/variants.h"
#include "kernels/sm90/backward/wide/smem.h"
#include "sm90/backward_sections.h"
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

/// Of the joint design, of all sequences and key heads.
Checked blocks_of_keys(const AttentionProblem& problem) {
  return Checked(problem.batch) * problem.heads_kv * (problem.seqlen_k / backward::kJointKeys);
}

/// Whether blocks of keys at 128 wait too long for one another: under a causal mask those of short sequences, and
/// without one a few of grouped heads, which all begin with the same queries. log: bwd-ordered-causal-128,
/// bwd-ordered-grouped, bwd-ordered-grouped-full
bool waits_long(const AttentionProblem& problem, const backward::Config& config) {
  constexpr std::int64_t kFewBlocks = 640;
  const bool is_grouped = heads_per_key_head(problem) > 1;
  if (config.head_dim <= 64) return false;
  if (config.rule.mask_right) return problem.seqlen_k < (is_grouped ? kLongCausal : 1024);
  return is_grouped && blocks_of_keys(problem).at_most(kFewBlocks);
}

/// Whether it takes them.
bool orders_sums(const AttentionProblem& problem, const backward::Config& config) {
  return can_order_sums(config) && !waits_long(problem, config);
}

/// Whether sums in order take less time than in any: under a causal mask at 64 columns, of long sequences with so many
/// blocks of keys that few wait for one another. Other rules were not measured. log: bwd-ordered-default
bool gains_by_order(const AttentionProblem& problem, const backward::Config& config) {
  const bool is_plain = config.rule == ScoreRule{.element = config.rule.element, .mask_right = true};
  if (!is_plain || std::max(config.head_dim, config.head_dim_v) > 64 || heads_per_key_head(problem) > 1) return false;
  constexpr std::int64_t kLeastBlocks = 1024;
  return std::min(problem.seqlen_q, problem.seqlen_k) >= kLongCausal &&
         !blocks_of_keys(problem).at_most(kLeastBlocks - 1);
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

}  // namespace

backward::Config with_tiles(const AttentionProblem& problem, const gpu::Choice& choice) {
  for (const backward::Config& tiles : choice.has_tiles() ? tile_choices(problem) : std::vector<backward::Config>()) {
    if (choice.wants(tiles.block_m, block_n(tiles), 1)) return tiles;
  }
  const backward::Config call = call_config(problem);
  const bool in_order = adds_in_order(problem, call);
  backward::Config chosen = call;
  for (const BackwardTiles& tiles : kBackwardTiles) {
    chosen = with(call, tiles, in_order);
    if (takes(problem, chosen, tiles, false)) break;
  }
  return chosen;
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

}  // namespace strobe::sm90
