// SPDX-License-Identifier: Apache-2.0
#include "sm90/row_invariant.h"

#include <algorithm>

#include "gpu/row_invariant.h"
#include "sm90/forward_plan.h"
#include "sm90/tile_fit.h"

namespace strobe::sm90 {
namespace {

// The choices below were measured on an H200: docs/performance-log-hopper.md.

/// Keys per step: what a row's sums are made of.
int keys_per_step(int widest) {
  if (widest <= 64) return 64;
  if (widest <= 128) return 128;
  return widest <= 192 ? 96 : 64;
}

}  // namespace

void choose_row_invariant_tiles(forward::Config& config, const AttentionProblem& problem) {
  const ScoreRule& rule = config.rule;
  const int widest = std::max(config.head_dim, config.head_dim_v);
  const bool copies = config.keys == forward::KeySource::page_rows;
  config.block_n = keys_per_step(widest);
  config.segment_blocks = gpu::segment_blocks(problem, widest, config.block_n);
  const bool joins = config.segment_blocks > 0;
  if (rule.varlen) config.schedule = Schedule::sorted;  // whose table must fit, too
  config.consumer_warpgroups = 2;
  if (packed_rows(problem, config) <= kRowsPerWarpgroup) {
    config.consumer_warpgroups = 1;
  } else if (widest <= 64 && !copies) {  // joining takes registers that four do not leave
    config.consumer_warpgroups = joins || (rule.alibi && rule.mask_left) ? 3 : 4;
    config.ping_pong = false;
  }
  // One step after another, P takes the registers of S.
  const int most_registers = !joins ? 220 : config.head_dim_v > 128 ? 0 : 180;
  const int registers = tile_registers(config, config.block_n) + option_registers(rule);
  if (config.consumer_warpgroups <= 2 && (registers > most_registers || rule.tree_mask))
    config.loop = forward::Loop::serial;
  config.q_stages = 1;
  config.stages = 4;
  while (config.stages > 2 && !fits(config)) --config.stages;
  if (config.consumer_warpgroups > 1) {
    config.q_stages = 2;
    if (!fits(config)) config.q_stages = 1;
  }
}

void choose_kept(forward::Config& config) {
  if (!folds(config)) return;
  forward::Config kept = config;
  kept.keeps_in_smem = true;
  if (!fits(kept)) kept.q_stages = 1;
  while (!fits(kept) && kept.stages > 2) --kept.stages;
  if (fits(kept)) config = kept;
}

}  // namespace strobe::sm90
