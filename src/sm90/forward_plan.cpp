// SPDX-License-Identifier: Apache-2.0
#include "sm90/forward_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/eight_bit.h"
#include "call/visible_keys.h"
#include "gpu/row_invariant.h"
#include "gpu/score_params.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/dealt_tiles.h"
#include "sm90/forward_fields.h"
#include "sm90/pages.h"
#include "sm90/row_invariant.h"
#include "sm90/supported.h"
#include "sm90/tile_fit.h"

namespace strobe::sm90 {
namespace {

constexpr int kCompiledHeadDims[] = {32, 64, 96, 128, 192, 256};

constexpr int kCompiledHeadDims8[] = {64, 128, 192, 256};  // of 8-bit operands

int compiled_head_dim(std::int64_t head_dim, const AttentionProblem& problem) {
  const std::span<const int> compiled =
      problem.eight_bit.given() ? std::span<const int>(kCompiledHeadDims8) : kCompiledHeadDims;
  return *std::ranges::lower_bound(compiled, static_cast<int>(head_dim));
}

// The choices below were measured on an H200: docs/performance-log-hopper.md.

/// Whether the third consumer warpgroup pays at head_dim 128: it hides more latency and wastes more of a tile's rows,
/// and its masked blocks are more. Chunks take more registers than three leave. Causal sequences whose lengths the
/// device alone knows are not dealt evenly: smaller tiles leave shorter ends. And a page is more boxes for 80 keys than
/// for 128.
bool prefers_three_warpgroups(const AttentionProblem& problem, const ScoreRule& rule) {
  if (problem.chunk > 0 || (rule.varlen && rule.mask_right) || problem.page_size != 0) return false;
  const bool window = rule.mask_left && rule.mask_right;  // masked blocks at both ends
  return problem.seqlen_q >= 1024 && gpu::most_visible_keys(problem, rule) >= (window ? 8192 : 2048);
}

/// Options that choose their own tiles: for registers, and for the keys that they take at a time.
bool needs_own_tiles(const ScoreRule& rule) { return rule.bias || rule.dropout || rule.block_mask != 0; }

/// As many keys per step as registers and shared memory hold.
void choose_block_n(forward::Config& config, int registers) {
  for (const int block_n : {128, 112, 96, 80, 64}) {
    config.block_n = block_n;
    const bool whole =
        (!config.rule.dropout || block_n % kDropoutColumns == 0) && config.rule.block_mask % block_n == 0;
    if (whole && tile_registers(config, block_n) <= registers && fits(config)) break;
  }
}

/// Two warpgroups, of which a thread has 240 registers.
void choose_wide_tiles(forward::Config& config) {
  const ScoreRule& rule = config.rule;
  choose_block_n(config, rule.dropout ? 176 : rule.tree_mask ? 156 : 188);
  // One step after another, P takes the registers of S; and warpgroups whose rows see different blocks must go from
  // block to block on their own.
  const bool crowded = tile_registers(config, config.block_n) + option_registers(rule) > 220;
  const bool own_blocks = rule.block_mask == kRowsPerWarpgroup && config.consumer_warpgroups > 1;
  if (crowded || own_blocks) config.loop = forward::Loop::serial;
}

/// Heads up to 64 wide: exponentials take as long as the GEMMs, and four warps per scheduler keep both units busiest
/// until sequences are long and their blocks all visible.
void choose_narrow_tiles(forward::Config& config, const AttentionProblem& problem) {
  const ScoreRule& rule = config.rule;
  const bool plain = !is_masked(rule) && !rule.varlen && !rule.softcap && !rule.alibi && !rule.scale_first;
  config.q_stages = 2;
  if (rule.dropout || rule.block_mask != 0) {
    choose_wide_tiles(config);
  } else if (rule.bias) {  // of 160 registers
    config.consumer_warpgroups = 3;
    config.stages = 4;
    choose_block_n(config, option_registers(rule) <= 24 ? 132 : 112);
  } else if (plain && problem.seqlen_q >= 8192 && problem.seqlen_k >= 8192) {
    config.consumer_warpgroups = 3;
    config.block_n = 128;
    config.stages = 3;
  } else if (rule.alibi && rule.mask_left) {  // registers for no more
    config.consumer_warpgroups = 3;
    config.block_n = 80;
    config.stages = 4;
  } else {
    config.consumer_warpgroups = 4;
    config.block_n = 64;
    config.stages = 4;
    config.ping_pong = plain;
  }
}

/// Tiles that are over so soon that a CTA mostly waits for its loads and stores: another one on the multiprocessor uses
/// that time.
void choose_two_ctas(forward::Config& config, int block_n) {
  config.ctas_per_sm = 2;
  config.consumer_warpgroups = 1;
  config.block_n = block_n;
  config.q_stages = config.rule.varlen ? 1 : 2;  // the table of sequences takes its place
  for (config.stages = 4; config.stages > 2 && !fits(config);) --config.stages;
}

/// Windows of two or three blocks of keys on a row of queries: tiles are over soon, as those of short sequences.
bool has_narrow_window(const AttentionProblem& problem, const ScoreRule& rule) {
  return rule.mask_left && rule.mask_right && !rule.varlen && !rule.chunked &&
         gpu::most_visible_keys(problem, rule) <= 128;
}

/// Under a block mask each of two CTAs on a multiprocessor goes its own way through the blocks, and hides the latency
/// of the other's. Wider blocks of wider heads take more registers and shared memory than two leave.
bool takes_two_ctas_for_blocks(const forward::Config& config) {
  const ScoreRule& rule = config.rule;
  const int widest = std::max(config.head_dim, config.head_dim_v);
  return rule.block_mask != 0 && !rule.bias && !rule.dropout &&
         widest <= (rule.block_mask == kRowsPerWarpgroup ? 128 : 64);
}

/// Whether a sequence is one block of rows or two, with few keys, and its tiles were chosen.
bool choose_short_tiles(forward::Config& config, const AttentionProblem& problem) {
  const int widest = std::max(config.head_dim, config.head_dim_v);
  const std::int64_t rows = packed_rows(problem, config);
  if (rows <= kRowsPerWarpgroup && problem.seqlen_k <= 4 * kRowsPerWarpgroup && widest <= 128) {
    choose_two_ctas(config, 64);
    return true;
  }
  if (rows > kRowsPerWarpgroup && rows <= 2 * kRowsPerWarpgroup && problem.seqlen_k <= 2 * kRowsPerWarpgroup &&
      widest <= 64) {
    if (!is_masked(config.rule)) {
      choose_two_ctas(config, 128);
    } else {
      config.block_n = 64;
      config.stages = 4;
      config.q_stages = 2;
      config.ping_pong = false;
    }
    return true;
  }
  return false;
}

/// Tiles of 8-bit operands of which one step comes after another: registers hold a third and a fourth warpgroup, whose
/// exponentials run under the others' products. The wide ones take the registers of two.
void choose_serial_tiles(forward::Config& config, const AttentionProblem& problem, bool plain) {
  const bool integers = config.operands == Operands::int8;
  const bool by_rows = config.keys_per_value_scale == 1;
  const int widest = std::max(config.head_dim, config.head_dim_v);
  // Integers with V scales by rows: as registers allow.
  const bool pays_by_rows = widest <= 64 ? problem.seqlen_k >= 4096
                                         : !is_masked(config.rule) && !config.rule.scale_first && !config.float_output;
  if (config.head_dim_v > 128 || (config.head_dim > 128 && !integers)) {  // registers, or memory for sums
    config.loop = forward::Loop::eight_bit_serial;
  } else if (plain && !integers && !by_rows) {
    config.loop = forward::Loop::eight_bit_serial;
    config.ping_pong = false;
    config.consumer_warpgroups = widest <= 64 ? 4 : 3;
    if (widest <= 64) config.block_n = 96;
  } else if (plain && integers && (!by_rows || pays_by_rows)) {
    config.loop = forward::Loop::eight_bit_serial;
    config.consumer_warpgroups = 3;
  }
}

/// 8-bit operands. Integers' probabilities are rounded relative to the largest of kProbabilityKeys, whatever the tiles.
void choose_eight_bit_tiles(forward::Config& config, const AttentionProblem& problem) {
  const bool integers = problem.dtype == DType::int8;
  config.operands = integers ? Operands::int8 : Operands::e4m3;
  config.loop = forward::Loop::eight_bit;
  config.rotated_columns = problem.eight_bit.v_rotated ? static_cast<int>(problem.head_dim_v) : 0;
  config.float_output = problem.eight_bit.output == DType::float32;
  config.consumer_warpgroups = 2;
  config.block_n = kProbabilityKeys;
  config.ping_pong = !integers;  // whose time is that of instructions, not of products
  config.q_stages = 2;
  const int shared = integers ? config.block_n : forward::kKeysPerScale;
  const std::int64_t v_rows = problem.eight_bit.v_rows;
  if (v_rows >= problem.seqlen_k || v_rows % shared == 0) config.keys_per_value_scale = shared;
  const ScoreRule& rule = config.rule;
  choose_serial_tiles(config, problem, !rule.mask_left && !rule.sink && !rule.softcap && !rule.alibi);
  config.stages = 4;
  if (rule.varlen) config.schedule = Schedule::sorted;  // whose table must fit, too
  while (config.stages > 2 && !fits(config)) --config.stages;
  if (!fits(config)) config.q_stages = 1;
}

void choose_tiles(forward::Config& config, const AttentionProblem& problem) {
  if (config.rule.row_invariant) return choose_row_invariant_tiles(config, problem);
  if (problem.eight_bit.given()) return choose_eight_bit_tiles(config, problem);
  const int widest = std::max(config.head_dim, config.head_dim_v);
  config.consumer_warpgroups = 2;
  config.stages = 2;
  config.q_stages = 1;
  if (!needs_own_tiles(config.rule) && choose_short_tiles(config, problem)) return;
  const bool copies =
      config.keys == forward::KeySource::page_rows;  // with registers that three warpgroups do not leave
  if (packed_rows(problem, config) <= kRowsPerWarpgroup) {
    // Reading keys and values is all the time there is: the more of them are on their way, the better.
    config.consumer_warpgroups = 1;
    choose_wide_tiles(config);
    while (config.stages < 4 && fits(config)) ++config.stages;
    if (!fits(config)) --config.stages;
  } else if (takes_two_ctas_for_blocks(config)) {
    choose_two_ctas(config, config.rule.block_mask);
  } else if (widest <= 64 && !copies) {
    choose_narrow_tiles(config, problem);
  } else if (widest <= 128 && has_narrow_window(problem, config.rule) && !needs_own_tiles(config.rule)) {
    choose_two_ctas(config, 64);
  } else if (widest <= 128 && prefers_three_warpgroups(problem, config.rule) && !config.rule.alibi &&
             !needs_own_tiles(config.rule) && !copies) {
    config.consumer_warpgroups = 3;
    config.block_n = config.rule.softcap && !is_masked(config.rule) ? 64 : 80;  // registers
    config.q_stages = 2;
  } else {
    choose_wide_tiles(config);
    config.q_stages = 2;
  }
  if (!fits(config)) config.q_stages = 1;
}

/// K and V that producers convert: they take registers from the consumers, and shared memory for blocks as they are
/// stored. As many keys per step as the call on 16 bits takes, so that results have its bits: but where few queries
/// have head_dims over 128 that differ, and shared memory does not hold as many.
void choose_stored_tiles(forward::Config& config, const AttentionProblem& problem) {
  AttentionProblem wide = problem;
  wide.stored = {};
  forward::Config of_wide = config;
  choose_tiles(of_wide, wide);
  config.block_n = of_wide.block_n;
  config.stored = problem.stored.dtype == DType::int8 ? Operands::int8 : Operands::e4m3;
  config.stages = 2;
  config.q_stages = 1;
  config.raw_stages = 2;
  if (config.rule.varlen) config.schedule = Schedule::sorted;  // whose table must fit, too
  config.consumer_warpgroups = packed_rows(problem, config) <= kRowsPerWarpgroup ? 1 : 2;
  if (!fits(config)) config.consumer_warpgroups = 1;
  if (!fits(config)) config.raw_stages = 1;
  if (!fits(config)) choose_block_n(config, tile_registers(config, config.block_n));
  const bool crowded = tile_registers(config, config.block_n) + option_registers(config.rule) > 184;
  const bool own_blocks = config.rule.block_mask == kRowsPerWarpgroup && config.consumer_warpgroups > 1;
  config.loop = crowded || own_blocks ? forward::Loop::serial : forward::Loop::pipelined;
  constexpr int kMostRawStages = 4;
  while (config.raw_stages < kMostRawStages && fits(config)) ++config.raw_stages;
  if (!fits(config) && config.raw_stages > 1) --config.raw_stages;
}

Schedule choose_schedule(const forward::Config& config, const AttentionProblem& problem, const DeviceShape& shape) {
  if (config.rule.varlen) return problem.batch <= kMaxSortedSequences ? Schedule::sorted : Schedule::rounds;
  // Of two CTAs on a multiprocessor and a window most tiles are as long, and those of a head share keys in L2.
  const bool as_long = config.rule.mask_left && config.ctas_per_sm > 1;
  const bool lengths_differ = has_diagonal(config.rule) && !as_long && m_tiles_of(problem, config) > 1;
  const bool fits_list = shape.multiprocessors * config.ctas_per_sm <= TileList::kMaxWorkers &&
                         m_tiles_of(problem, config) <= TileList::kMaxTiles;
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
int workers_of_split_keys(const AttentionProblem& problem, const forward::Config& config, const DeviceShape& shape) {
  if (eight_bit(config)) return 0;
  if (config.consumer_warpgroups > 3) return 0;  // four have no registers for it
  const Checked heads = Checked(problem.batch) * (problem.heads_q / config.packed_heads);
  const std::int64_t tiles = (heads * m_tiles_of(problem, config)).value();
  return gpu::split_workers(problem, split_kernel(problem, config, shape), tiles,
                            gpu::most_visible_keys(problem, config.rule));
}

/// Chunks as tiles' ends instead of masks: where chunks begin where tiles and blocks of keys do.
void choose_whole_chunks(forward::Config& config, const AttentionProblem& problem, const DeviceShape& shape) {
  const VisibleKeys visible = visible_keys(problem);
  if (!config.rule.chunked || config.rule.varlen || config.rule.row_invariant || visible.left < VisibleKeys::kUnbounded)
    return;
  forward::Config whole = config;
  whole.whole_chunks = true;
  whole.rule.chunked = whole.rule.mask_left = false;
  choose_tiles(whole, problem);
  const auto divides = [](std::int64_t rows, std::int64_t at) { return at % rows == 0; };
  const bool aligned = divides(block_m(whole), visible.chunk) && divides(whole.block_n, visible.chunk) &&
                       divides(block_m(whole), visible.diagonal);
  if (aligned && workers_of_split_keys(problem, whole, shape) == 0) config = whole;
}

}  // namespace

Result<forward::Config> forward_config(const AttentionProblem& problem, const DeviceShape& shape) {
  if (Status status = check_supported(problem); !status.ok()) return status;
  forward::Config config;
  config.rule = gpu::score_rule(problem);
  config.head_dim = compiled_head_dim(problem.head_dim, problem);
  config.head_dim_v = compiled_head_dim(problem.head_dim_v, problem);
  config.packed_heads = gpu::choose_packed_heads(problem);
  config.keys = key_source(problem);
  config.entries = problem.has_cache_batch_idx;
  problem.stored.given() ? choose_stored_tiles(config, problem) : choose_tiles(config, problem);
  if (!problem.stored.given() && !problem.eight_bit.given()) {
    choose_whole_chunks(config, problem, shape);
  }
  config.schedule = choose_schedule(config, problem, shape);
  choose_kept(config);
  if (workers_of_split_keys(problem, config, shape) > 0) {
    config.schedule = Schedule::split;
    config.keeps_in_smem = false;
    config.ctas_per_sm = 1;
    // A part's numbers take registers, too; and one step after another still is faster than keys arrive.
    const int left = config.keys == forward::KeySource::page_rows && config.consumer_warpgroups > 1 ? 167 : 175;
    if (tile_registers(config, config.block_n) + option_registers(config.rule) > left)
      config.loop = forward::Loop::serial;
  }
  const std::int64_t tiles = (Checked(m_tiles_of(problem, config)) * (problem.batch + 1) * problem.heads_q).value();
  if (tiles > kMaxInt) {
    return unsupported("{} tiles of {} query rows: the hopper engine takes up to {}", tiles, block_m(config), kMaxInt);
  }
  return completed(config);
}

std::optional<forward::Config> aligned_bias_config(const AttentionProblem& problem, const DeviceShape& shape,
                                                   const forward::Config& config) {
  const ScoreRule& rule = config.rule;
  if (!rule.bias || rule.block_mask != 0 || rule.dropout || config.whole_chunks || config.packed_heads > 1 ||
      eight_bit(config) || converts(config) || in_pages(config) || problem.seqlen_q <= kRowsPerWarpgroup ||
      problem.seqlen_k == 0) {
    return std::nullopt;
  }
  forward::Config aligned = config;
  const int widest = std::max(config.head_dim, config.head_dim_v);
  const bool crowded = rule.varlen || rule.chunked || rule.max_logits;
  aligned.loop = forward::Loop::pipelined;
  aligned.ping_pong = true;
  aligned.q_stages = 1;
  aligned.stages = 2;
  aligned.bias_stages = 1;
  if (widest <= 64) {
    aligned.consumer_warpgroups = 3;
    // Of 16 bits and with room for it: a longer ring of the bias.
    const bool narrow = !rule.bias_float32 && !crowded && option_registers(rule) <= 8;
    aligned.block_n = crowded ? 96 : narrow ? 128 : 112;
    aligned.bias_stages = narrow ? 2 : 1;
  } else if (widest <= 128 && prefers_three_warpgroups(problem, rule) && !crowded) {
    aligned.consumer_warpgroups = 3;
    aligned.block_n = 80;
  } else {
    aligned.consumer_warpgroups = 2;
    choose_block_n(aligned, 188);
  }
  if (!fits(aligned)) return std::nullopt;
  aligned.schedule = choose_schedule(aligned, problem, shape);
  return completed(aligned);
}

ForwardPlan forward_plan(const AttentionProblem& problem, const DeviceShape& shape, const forward::Config& config) {
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
  if (config.schedule == Schedule::dealt) plan.list = deal_tiles(problem, shape, plan);
  if (config.schedule == Schedule::split) {
    plan.workers = std::max(1, workers_of_split_keys(problem, config, shape));
    plan.split = gpu::split_plan(split_kernel(problem, config, shape), plan.tiles.tiles, plan.workers);
  }
  if (folds(config) && !config.keeps_in_smem) {
    plan.kept_bytes =
        (sizeof(float) * Checked(plan.workers) * block_m(config) * config.head_dim_v).value<std::size_t>();
  }
  return plan;
}

}  // namespace strobe::sm90
