// SPDX-License-Identifier: Apache-2.0
#include "hopper/row_invariant.h"

#include <algorithm>
#include <utility>

#include "call/arithmetic.h"
#include "gpu/supported.h"
#include "hopper/engine.h"
#include "hopper/tile_fit.h"

namespace strobe::hopper {
namespace {

// The choices below were measured on an H200: docs/performance-log-hopper.md.

/// Keys per step: what a row's sums are made of.
int keys_per_step(int widest) {
  if (widest <= 64) return 64;
  if (widest <= 128) return 128;
  return widest <= 192 ? 96 : 64;
}

/// Keys of a segment, at most. Few queries are as many CTAs' as they have segments; a prompt takes time to join them,
/// the longer the wider V is.
int keys_per_segment(int widest) { return widest <= 128 ? 2048 : 4096; }

}  // namespace

Status check_row_invariant(const AttentionProblem& problem) {
  if (!problem.row_invariant || problem.pass == Pass::backward) return {};
  for (const auto& [name, wanted] :
       {std::pair{"dropout", problem.dropout != 0.0F}, std::pair{"a bias", problem.modifiers.has_bias},
        std::pair{"a block mask", problem.modifiers.block_size != 0},
        std::pair{"k in 8 bits", problem.stored.given()}}) {
    if (!wanted) continue;
    return gpu::unsupported("row_invariant with {} is not supported by the hopper engine; the cpu engine supports it",
                            name);
  }
  return {};
}

void choose_row_invariant_tiles(forward::Config& config, const AttentionProblem& problem) {
  const ScoreRule& rule = config.rule;
  const int widest = std::max(config.head_dim, config.head_dim_v);
  const bool copies = config.keys == forward::KeySource::page_rows;
  config.block_n = keys_per_step(widest);
  const int segment = keys_per_segment(widest) / config.block_n;
  if (problem.seqlen_k > std::int64_t{segment} * config.block_n) config.segment_blocks = segment;
  const bool joins = config.segment_blocks > 0;
  if (rule.varlen) config.schedule = Schedule::sorted;  // whose table must fit, too
  config.consumer_warpgroups = 2;
  if (problem.seqlen_q * config.packed_heads <= kRowsPerWarpgroup) {
    config.consumer_warpgroups = 1;
  } else if (widest <= 64 && !copies) {  // joining takes registers that four do not leave
    config.consumer_warpgroups = joins || (rule.alibi && rule.mask_left) ? 3 : 4;
    config.ping_pong = false;
  }
  // One step after another, P takes the registers of S.
  const int most_registers = !joins ? 220 : config.head_dim_v > 128 ? 0 : 180;
  const int registers = tile_registers(config, config.block_n) + option_registers(rule);
  if (config.consumer_warpgroups <= 2 && (registers > most_registers || rule.tree_mask)) config.two_stage = false;
  config.q_stages = 1;
  config.stages = 4;
  while (config.stages > 2 && !fits(config)) --config.stages;
  if (config.consumer_warpgroups > 1) {
    config.q_stages = 2;
    if (!fits(config)) config.q_stages = 1;
  }
}

std::int64_t segments_of(const AttentionProblem& problem, const forward::Config& config) {
  if (config.segment_blocks == 0) return 0;
  return ceil_div<std::int64_t>(problem.seqlen_k, std::int64_t{config.segment_blocks} * config.block_n);
}

void choose_kept(forward::Config& config) {
  if (!folds(config)) return;
  forward::Config kept = config;
  kept.keeps_in_smem = true;
  if (!fits(kept)) kept.q_stages = 1;
  while (!fits(kept) && kept.stages > 2) --kept.stages;
  if (fits(kept)) config = kept;
}

}  // namespace strobe::hopper
