// SPDX-License-Identifier: Apache-2.0
#include "sm80/backward_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "gpu/auxiliary/backward_variant.h"
#include "gpu/params/score.h"
#include "gpu/plan/backward_plan.h"
#include "gpu/plan/supported.h"
#include "kernels/sm80/backward/smem.h"
#include "sm80/supported.h"

namespace strobe::sm80 {
namespace {

/// Of the rule, what gradients depend on: the LSE has the sink in it already, and there is no maximum to find.
ScoreRule backward_rule(const AttentionProblem& problem) {
  ScoreRule rule = gpu::score_rule(problem);
  rule.sink = rule.max_logits = false;
  return rule;
}

/// How a CTA's work is cut, of elements of that size and of heads whose wider side is compiled as `head_dim`.
struct BackwardTiles {
  int element_bytes = 0, head_dim = 0;
  int warps = 0, rows_per_warp = 0, column_warps = 0, block_m = 0, part_m = 0, stages = 0, ctas_per_sm = 0;
  int query_slices = 1;
};

backward::Config with(backward::Config config, const BackwardTiles& tiles) {
  config.warps = tiles.warps;
  config.rows_per_warp = tiles.rows_per_warp;
  config.column_warps = tiles.column_warps;
  config.block_m = tiles.block_m;
  config.part_m = tiles.part_m;
  config.stages = tiles.stages;
  config.ctas_per_sm = tiles.ctas_per_sm;
  config.query_slices = tiles.query_slices;
  return config;
}

/// Registers of a thread that hold dK, dV, S, dP and what options keep beside these.
int tile_registers(const backward::Config& config) {
  const ScoreRule& rule = config.rule;
  const int scores = fragments(config) * config.part_m / 2 * (2 + int{has_slope(rule)} + int{rule.bias});
  const int gradients = fragments(config) * (key_columns(config) + value_columns(config)) / 2;
  int options = 8 * int{rule.alibi} + 20 * int{rule.bias} + 6 * int{rule.softcap} + 24 * int{has_text(rule)};
  if (rule.dropout) options += config.ordered ? 32 : 24;
  if (rule.block_mask != 0) options += 34;
  return gradients + scores + options;
}

/// Operands and addresses, and of float32 what a loop over steps holds; found by compiling.
int other_registers(const backward::Config& config, const DeviceShape& shape) {
  const ScoreRule& rule = config.rule;
  if (rule.element != Element::fp32) return 62;
  const int columns =
      config.column_warps == 1 ? 28 + 22 * (int{rule.mask_left} + int{rule.varlen} + int{rule.alibi}) : 0;
  const bool later = shape.compute_major >= 10;
  return 110 + columns + (later ? 22 : 0) + (rule.dropout ? 32 : 0);
}

bool fits(const backward::Config& config, const DeviceShape& shape) {
  if (!is_consistent(config)) return false;
  const int registers = std::min(255, 65536 / (config.ctas_per_sm * threads_per_block(config)));
  return tile_registers(config) + other_registers(config, shape) <= registers &&
         smem_plan(config).total_bytes + diagonal_bytes(config) <= shared_bytes_of(shape, config.ctas_per_sm);
}

/// Fastest first on an H200.
constexpr BackwardTiles kBackwardTiles[] = {
    // log: sm80-bwd-d64-32-keys, sm80-bwd-d64-one-stage
    {2, 64, 4, 32, 1, 64, 32, 1, 2},
    {2, 64, 4, 32, 1, 32, 32, 2, 2},
    {2, 64, 8, 16, 1, 64, 32, 2, 1},
    {2, 64, 4, 16, 1, 64, 32, 2, 2},
    {2, 64, 4, 16, 1, 64, 32, 1, 2},
    {2, 64, 4, 16, 1, 64, 16, 1, 1},
    // log: sm80-bwd-32-keys, sm80-bwd-two-ctas
    {2, 128, 8, 32, 2, 64, 32, 2, 1},
    {2, 128, 4, 32, 2, 64, 32, 2, 2},
    {2, 128, 8, 16, 1, 64, 32, 2, 1},
    {2, 128, 8, 16, 2, 64, 32, 2, 1},
    {2, 128, 8, 16, 2, 64, 32, 1, 1},
    {2, 128, 8, 16, 2, 64, 16, 1, 1},
    // log: sm80-bwd-d256-four-warps
    {2, 256, 8, 16, 2, 64, 32, 2, 1},
    {2, 256, 8, 16, 2, 64, 32, 1, 1},
    {2, 256, 8, 16, 4, 64, 16, 2, 1},
    {2, 256, 8, 16, 4, 64, 16, 1, 1},
    {2, 256, 4, 16, 2, 32, 16, 1, 1},
    {2, 512, 8, 16, 4, 64, 16, 1, 1, 4},
    {2, 512, 8, 16, 4, 32, 16, 1, 1, 2},
    {2, 512, 4, 16, 4, 32, 16, 1, 1, 4},
    // log: sm80-float32-tiles
    {4, 64, 8, 16, 1, 64, 32, 2, 1},
    {4, 64, 4, 16, 1, 64, 16, 1, 2},
    {4, 64, 4, 16, 1, 64, 16, 1, 1},
    {4, 64, 4, 16, 2, 64, 32, 1, 1},
    {4, 128, 8, 16, 2, 64, 32, 1, 1},
    {4, 128, 8, 16, 2, 64, 16, 1, 1},
    {4, 128, 8, 16, 2, 32, 16, 2, 1},
    {4, 128, 4, 16, 2, 64, 32, 1, 1},
    {4, 128, 4, 16, 2, 32, 16, 1, 1}};

/// As compiled. Of float32 a warp has multiples of 32 columns, and two may share keys.
int backward_head_dim(const AttentionProblem& problem, std::int64_t head_dim) {
  if (gpu::has_wide_heads(problem)) return compiled_wide_head_dim(head_dim);
  if (problem.dtype != DType::float32) return compiled_head_dim(head_dim);
  return head_dim <= 64 ? 64 : 128;
}

/// The fastest that fits, or what is asked for. The last one of a head_dim does always.
backward::Config choose_tiles(const backward::Config& config, const DeviceShape& shape, const gpu::Choice& choice) {
  const std::vector<backward::Config> choices = tile_choices(config, shape);
  const auto wanted = std::ranges::find_if(
      choices, [&](const backward::Config& c) { return choice.wants(c.block_m, block_n(c), c.ctas_per_sm); });
  return wanted == choices.end() ? choices.front() : *wanted;
}

/// Key heads that are in flight at once: as many as fit in L2; under a causal mask enough for the short items to fill
/// up behind the long ones.
int section_heads(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config,
                  int wanted) {
  constexpr std::int64_t kSumBytes = sizeof(float);
  std::int64_t section = gpu::key_heads_in_l2(problem, shape, kSumBytes * problem.head_dim);
  if (config.rule.mask_right && !config.rule.mask_left) {
    constexpr std::int64_t kRounds = 3;
    const std::int64_t in_rounds = ceil_div<std::int64_t>(kRounds * shape.multiprocessors * config.ctas_per_sm,
                                                          gpu::backward_blocks(problem.seqlen_k, block_n(config)));
    section = std::max(section, in_rounds);
  }
  if (wanted > 0) section = wanted;
  return static_cast<int>(
      std::clamp<std::int64_t>(section, 1, std::max<std::int64_t>(1, gpu::backward_key_heads(problem))));
}

BackwardWorkspace workspace_of(const AttentionProblem& problem, const BackwardPlan& plan) {
  const backward::Config& config = plan.config;
  BackwardWorkspace workspace;
  const Checked row_bytes = workspace.take_rows(problem, plan.params, config.block_m);
  workspace.dq_sum = workspace.take(row_bytes * config.head_dim);
  workspace.dq_semaphores = workspace.take(config.ordered ? row_bytes / config.block_m : 0);
  workspace.zeros_bytes = workspace.total_bytes - workspace.dq_sum;
  return workspace;
}

}  // namespace

Result<backward::Config> backward_config(const AttentionProblem& problem, const DeviceShape& shape,
                                         const gpu::Choice& choice) {
  if (Status status = check_supported(problem); !status.ok()) return status;
  backward::Config config;
  config.rule = backward_rule(problem);
  config.head_dim = backward_head_dim(problem, problem.head_dim);
  config.head_dim_v = backward_head_dim(problem, problem.head_dim_v);
  config.ordered = problem.deterministic;
  config.captures = problem.expression.gradients != 0;  // for which these tiles must have room
  config = choose_tiles(config, shape, choice);
  config.captures = false;
  const std::int64_t m_blocks = gpu::backward_blocks(problem.seqlen_q, config.block_m);
  const std::int64_t n_blocks = gpu::backward_blocks(problem.seqlen_k, block_n(config));
  const std::int64_t sequences = gpu::backward_batch(problem);
  const Checked bias_tiles = problem.wants_d_bias ? Checked(gpu::bias_planes(problem)) * m_blocks * n_blocks : 0;
  const std::int64_t tiles = std::max({(Checked(m_blocks) * problem.heads_q * sequences).value(),
                                       (Checked(n_blocks) * problem.heads_kv * sequences).value(), bias_tiles.value()});
  if (tiles > gpu::kMaxInt) {
    return gpu::unsupported("{} backward tiles of {} queries and {} keys: the sm80 kernels take up to {}", tiles,
                            config.block_m, block_n(config), gpu::kMaxInt);
  }
  return config;
}

std::vector<backward::Config> tile_choices(const backward::Config& config, const DeviceShape& shape) {
  const int widest = std::max(config.head_dim, config.head_dim_v);
  const int head_dim = widest <= 64 ? 64 : widest <= 128 ? 128 : widest <= 256 ? 256 : 512;
  const int element_bytes = bytes_of(config.rule.element);
  std::vector<backward::Config> choices;
  backward::Config last = config;
  for (const BackwardTiles& tiles : kBackwardTiles) {
    if (tiles.head_dim != head_dim || tiles.element_bytes != element_bytes) continue;
    last = with(config, tiles);
    if (fits(last, shape)) choices.push_back(last);
  }
  if (choices.empty()) choices.push_back(last);
  return choices;
}

BackwardPlan backward_plan(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config,
                           const gpu::Choice& choice) {
  BackwardPlan plan;
  plan.config = config;
  plan.prepare = gpu::prepare_config(problem, config.rule);
  BackwardParams& params = plan.params;
  params = gpu::planned_params(problem, config.block_m, block_n(config));
  params.row_groups = auxiliary::large_row_groups(params.m_blocks, config.block_m);
  params.section_heads = section_heads(problem, shape, config, choice.section_heads);
  const bool has_queries = problem.total_q > 0 && problem.heads_q > 0;
  if (!has_queries && problem.total_k == 0) return plan;
  plan.items = (Checked(gpu::backward_key_heads(problem)) * params.n_blocks).value<int>();
  if (has_queries && plan.items > 0) {
    const Checked sequences = problem.batch + (problem.packed_q ? 1 : 0);
    plan.query_blocks = (sequences * problem.heads_q * params.m_blocks).value<int>();
  }
  plan.workspace = workspace_of(problem, plan);
  return plan;
}

std::string explain(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan) {
  const backward::Config& c = plan.config;
  std::string text = gpu::explain_tiles(problem, block_n(c), c.block_m, c.head_dim, c.head_dim_v);
  text += fmt::format("warps         {}, {} for each {} keys\n", c.warps, c.column_warps, c.rows_per_warp);
  if (c.query_slices > 1)
    text += fmt::format("dQ            {} slices of columns, one after another\n", c.query_slices);
  text += fmt::format("CTAs          {} on a multiprocessor at a time\n", c.ctas_per_sm);
  text += c.stages > 1 ? fmt::format("pipeline      {} stages of Q and dO\n", c.stages)
                       : std::string("pipeline      one stage of Q and dO, which arrive under dQ's product\n");
  text +=
      fmt::format("shared memory {} of {} bytes\n", smem_plan(c).total_bytes, shared_bytes_of(shape, c.ctas_per_sm));
  if (plan.items > 0) text += gpu::explain_sections(problem, plan.params.section_heads, 1);
  text += c.ordered ? "dQ            sums in float32 that blocks of keys add to in order: the same bits every time\n"
                    : "dQ            sums in float32 that blocks of keys add to in any order\n";
  text += fmt::format("launches      {}\n", plan.items == 0 ? 0 : plan.query_blocks == 0 ? 1 : 3);
  return text;
}

}  // namespace strobe::sm80
