// SPDX-License-Identifier: Apache-2.0
#include "sm90/forward_plan.h"

#include <algorithm>
#include <span>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/visible_keys.h"
#include "gpu/params/element.h"
#include "gpu/params/score.h"
#include "gpu/plan/faster_plan.h"
#include "gpu/plan/row_invariant.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/dealt_tiles.h"
#include "sm90/eight_bit_tiles.h"
#include "sm90/forward_fields.h"
#include "sm90/forward_tiles.h"
#include "sm90/pages.h"
#include "sm90/row_invariant.h"
#include "sm90/shown_blocks.h"
#include "sm90/supported.h"
#include "sm90/times.h"
#include "sm90/wide_tiles.h"

namespace strobe::sm90 {
namespace {

constexpr int kCompiledHeadDims[] = {32, 64, 96, 128, 192, 256};

constexpr int kCompiledHeadDims8[] = {64, 128, 192, 256};  // of 8-bit operands

int compiled_head_dim(std::int64_t head_dim, const AttentionProblem& problem) {
  const std::span<const int> compiled =
      problem.eight_bit.given() ? std::span<const int>(kCompiledHeadDims8) : kCompiledHeadDims;
  return *std::ranges::lower_bound(compiled, static_cast<int>(head_dim));
}

Schedule choose_schedule(const forward::Config& config, const AttentionProblem& problem, const DeviceShape& shape) {
  if (config.rule.varlen) return problem.batch <= kMaxTableSequences ? Schedule::sorted : Schedule::rounds;
  // Of two CTAs on a multiprocessor and a window most tiles are as long, and those of a head share keys in L2.
  const bool as_long = config.rule.mask_left && config.ctas_per_sm > 1;
  // Masks that are texts hide more than the diagonal does: what they read of captures the device alone knows.
  const bool knows_lengths =
      walks_by_text(config.rule) ? knows_shown_blocks(problem, config) : has_diagonal(config.rule);
  const bool lengths_differ = knows_lengths && !as_long && m_tiles_of(problem, config) > 1;
  const bool fits_list = shape.multiprocessors * config.ctas_per_sm <= TileList::kMaxWorkers &&
                         m_tiles_of(problem, config) <= TileList::kMaxTiles;
  const bool knows_none = has_block_bits(config.rule) && !knows_lengths && has_key_tags(config);
  if (knows_none && m_tiles_of(problem, config) > 1) return Schedule::taken;
  return lengths_differ && fits_list ? Schedule::dealt : Schedule::rounds;
}

gpu::SplitKernel split_kernel(const AttentionProblem& problem, const forward::Config& config,
                              const DeviceShape& shape) {
  return {.rule = config.rule,
          .block_m = block_m(config),
          .block_n = config.block_n,
          .head_dim_v = config.head_dim_v,
          .rows = packed_rows(problem, config),
          .ctas = shape.multiprocessors,
          .segments = gpu::segments_of(problem, config.segment_blocks * config.block_n)};
}

/// 0: the keys of a tile are one CTA's.
int workers_of_split_keys(const AttentionProblem& problem, const forward::Config& config, const DeviceShape& shape,
                          int wanted = 0) {
  if (eight_bit(config)) return 0;
  if (config.consumer_warpgroups > 3) return 0;  // four have no registers for it
  const Checked heads = Checked(problem.batch) * (problem.heads_q / config.packed_heads);
  const std::int64_t tiles = (heads * m_tiles_of(problem, config)).value();
  // Parts of wide tiles are large, and whole ones of the heads of a sequence read its keys at the same time.
  if (is_wide(config) && wanted == 0 && gpu::occupy_most(tiles, shape.multiprocessors)) return 0;
  return gpu::split_workers(problem, split_kernel(problem, config, shape), tiles,
                            gpu::most_visible_keys(problem, config.rule), wanted);
}

/// What the problem asks for, before its tiles.
forward::Config call_config(const AttentionProblem& problem) {
  forward::Config config{.rule = gpu::score_rule(problem)};
  if (has_wide_heads(problem)) {
    config = with_wide_columns(config, problem);
  } else {
    config.head_dim = compiled_head_dim(problem.head_dim, problem);
    config.head_dim_v = compiled_head_dim(problem.head_dim_v, problem);
  }
  config.packed_heads = gpu::choose_packed_heads(problem);
  config.keys = key_source(problem);
  config.entries = problem.has_cache_batch_idx;
  if (problem.stored.given()) config.stored = gpu::element_of(problem.stored.dtype);
  return problem.eight_bit.given() ? with_eight_bit_operands(config, problem) : config;
}

/// Chunks as tiles' ends instead of masks: where chunks begin where tiles and blocks of keys do.
std::optional<forward::Config> with_whole_chunks(const forward::Config& call, const AttentionProblem& problem,
                                                 const DeviceShape& shape) {
  const VisibleKeys visible = visible_keys(problem);
  if (!call.rule.chunked || call.rule.varlen || has_text(call.rule) || call.rule.row_invariant || converts(call) ||
      eight_bit(call) || visible.left < VisibleKeys::kUnbounded) {
    return std::nullopt;
  }
  forward::Config chunks = call;
  chunks.whole_chunks = true;
  chunks.rule.chunked = chunks.rule.mask_left = false;
  const forward::Config whole = with_tiles(chunks, problem);
  const auto divides = [](std::int64_t rows, std::int64_t at) { return at % rows == 0; };
  const bool aligned = divides(block_m(whole), visible.chunk) && divides(whole.block_n, visible.chunk) &&
                       divides(block_m(whole), visible.diagonal);
  if (!aligned || workers_of_split_keys(problem, whole, shape) > 0) return std::nullopt;
  return whole;
}

/// `tiles` with the order in which CTAs take them.
forward::Config with_schedule(const forward::Config& tiles, const AttentionProblem& problem, const DeviceShape& shape,
                              int split_ctas = 0) {
  forward::Config config = tiles;
  config.schedule = choose_schedule(tiles, problem, shape);
  config = with_kept_segments(config);
  if (workers_of_split_keys(problem, config, shape, split_ctas) > 0) {
    config.schedule = Schedule::split;
    config.keeps_in_smem = false;
    config.ctas_per_sm = 1;
  }
  if (has_page_blocks(problem, config)) config.keys = forward::KeySource::page_blocks;
  return completed(config);
}

/// Calls whose tiles the model compares: without a mask or causal, of sequences of one length, without options. Others
/// were measured where they fill a device, and are not in the pack with other tiles.
bool compares_tiles(const AttentionProblem& problem, const forward::Config& rule) {
  const ScoreRule plain{.element = rule.rule.element, .mask_right = rule.rule.mask_right};
  return rule.rule == plain && rule.keys == forward::KeySource::tensor && !rule.entries && rule.packed_heads == 1 &&
         problem.seqlen_k > 0 && rule.schedule != Schedule::split;
}

/// A plan but for the list of a dealt schedule, which takes longer to make than all else.
ForwardPlan plan_without_list(const AttentionProblem& problem, const DeviceShape& shape, const forward::Config& config,
                              const gpu::Choice& choice) {
  ForwardPlan plan;
  plan.config = config;
  const std::int64_t sequences = problem.batch + (problem.packed_q ? 1 : 0);  // rows behind the last one are one more
  if (sequences == 0 || problem.heads_q == 0 || problem.total_q == 0) return plan;
  plan.tiles.heads = static_cast<int>(problem.heads_q) / config.packed_heads;
  plan.tiles.m_tiles = static_cast<int>(std::max<std::int64_t>(1, m_tiles_of(problem, config)));
  plan.tiles.tiles = (Checked(plan.tiles.m_tiles) * sequences * plan.tiles.heads).value<int>();
  plan.tiles.by_m_tiles = Divisor::of(plan.tiles.m_tiles);
  plan.tiles.by_inner = Divisor::of(sequences_are_inner(config.rule) ? static_cast<int>(sequences) : plan.tiles.heads);
  plan.workers = std::min(shape.multiprocessors * config.ctas_per_sm, plan.tiles.tiles);
  if (config.schedule == Schedule::split) {
    plan.workers = std::max(1, workers_of_split_keys(problem, config, shape, choice.split_ctas));
  }
  plan.workers = std::max(plan.workers / cluster_ctas(config), 1) * cluster_ctas(config);
  return plan;
}

/// The rule's variant, or one of more tiles where the rule's leave multiprocessors idle and these are predicted to be
/// faster. log: idle-device-tiles
forward::Config with_faster_tiles(const AttentionProblem& problem, const DeviceShape& shape,
                                  const forward::Config& call, const forward::Config& rule) {
  constexpr double kMargin = 1.15;
  constexpr double kMarginOfWide =
      1.05;  // of heads of more than 64 columns, whose kinds of tiles the model knows apart
  const bool narrow = rule.head_dim <= 64 && rule.head_dim_v <= 64;
  if (!compares_tiles(problem, rule)) return rule;
  const auto work_of = [&](const forward::Config& config) {
    return forward_work(problem, shape, plan_without_list(problem, shape, config, {}));
  };
  const Checked tiles = Checked(m_tiles_of(problem, rule)) * problem.batch * problem.heads_q;
  if (!gpu::has_few_tiles(tiles, shape)) return rule;
  const gpu::PlannedWork work = work_of(rule);
  if (narrow && !gpu::leaves_idle(work)) return rule;
  gpu::FasterPlan faster(gpu::predicted_times(shape, work).seconds(), narrow ? kMargin : kMarginOfWide);
  forward::Config chosen = rule;
  for (const forward::Config& other : tile_choices(call, problem)) {
    if (m_tiles_of(problem, other) <= m_tiles_of(problem, rule)) continue;
    const forward::Config config = with_schedule(other, problem, shape);
    if (config.schedule == Schedule::split) continue;
    if (faster.takes(gpu::predicted_times(shape, work_of(config)).seconds())) chosen = config;
  }
  return chosen;
}

}  // namespace

Result<forward::Config> forward_config(const AttentionProblem& problem, const DeviceShape& shape,
                                       const gpu::Choice& choice) {
  if (Status status = check_supported(problem); !status.ok()) return status;
  const forward::Config call = call_config(problem);
  const std::optional<forward::Config> whole = with_whole_chunks(call, problem, shape);
  forward::Config config =
      with_schedule(whole.has_value() ? *whole : with_tiles(call, problem, choice), problem, shape, choice.split_ctas);
  if (!choice.has_tiles() && !whole.has_value()) config = with_faster_tiles(problem, shape, call, config);
  const std::int64_t tiles = (Checked(m_tiles_of(problem, config)) * (problem.batch + 1) * problem.heads_q).value();
  if (tiles > kMaxInt) {
    return unsupported("{} tiles of {} query rows: the sm90 kernels take up to {}", tiles, block_m(config), kMaxInt);
  }
  return config;
}

std::vector<forward::Config> tile_choices_of(const AttentionProblem& problem, const forward::Config& config) {
  if (config.whole_chunks) return {config};
  return tile_choices(call_config(problem), problem);
}

std::optional<forward::Config> aligned_bias_config(const AttentionProblem& problem, const DeviceShape& shape,
                                                   const forward::Config& config) {
  const ScoreRule& rule = config.rule;
  if (!rule.bias || rule.block_mask != 0 || rule.dropout || config.whole_chunks || config.packed_heads > 1 ||
      eight_bit(config) || converts(config) || in_pages(config) || is_wide(config) ||
      problem.seqlen_q <= kRowsPerWarpgroup || problem.seqlen_k == 0) {
    return std::nullopt;
  }
  forward::Config call = call_config(problem);
  call.schedule = config.schedule;  // whose table of sequences must fit, too
  const std::optional<forward::Config> tiles = with_aligned_bias_tiles(call, problem);
  if (!tiles.has_value()) return std::nullopt;
  return with_schedule(*tiles, problem, shape);
}

std::optional<forward::Config> shared_values_config(const AttentionProblem& problem, const forward::Config& config) {
  const std::optional<forward::Config> tiles = with_values_in_keys(config, problem);
  if (!tiles.has_value()) return std::nullopt;
  return completed(*tiles);
}

bool always_shares_values(const AttentionProblem& problem, const forward::Config& config) {
  const std::optional<forward::Config> shared = with_values_in_keys(config, problem);
  return problem.has_qv && shared.has_value() && shared->keys != forward::KeySource::page_rows;
}

ForwardPlan forward_plan(const AttentionProblem& problem, const DeviceShape& shape, const forward::Config& config,
                         const gpu::Choice& choice) {
  ForwardPlan plan = plan_without_list(problem, shape, config, choice);
  if (plan.tiles.tiles == 0) return plan;
  if (config.schedule == Schedule::dealt) plan.list = deal_tiles(problem, shape, plan);
  if (config.schedule == Schedule::split) {
    plan.split = gpu::split_plan(split_kernel(problem, config, shape), plan.tiles.tiles, plan.workers);
  }
  if (folds(config) && !config.keeps_in_smem) {
    plan.kept_bytes =
        (sizeof(float) * Checked(plan.workers) * block_m(config) * config.head_dim_v).value<std::size_t>();
  }
  return plan;
}

}  // namespace strobe::sm90
