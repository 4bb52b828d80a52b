// SPDX-License-Identifier: Apache-2.0
#include "sm90/wide_tiles.h"

#include <algorithm>
#include <iterator>

#include "call/arithmetic.h"
#include "kernels/sm90/forward/smem.h"

namespace strobe::sm90 {
namespace {

using forward::Config;

constexpr int kCompiledColumnsOfV[] = {256, 384, 512};  // halves of which are whole panels
constexpr int kBytesOfV = 96 * 1024;                    // three blocks of one warpgroup's 256 columns
constexpr int kOutputRegisters = 160;                   // of which 128 hold O; the others' sum is 192
constexpr int kMostKeyPanels = 16;

/// Registers of the other two roles, and Q's columns that the consumer has registers for: as compiling shows.
struct WideRegisters {
  int producer, consumer, columns;
};

WideRegisters wide_registers(const Config& config) {
  const ScoreRule& rule = config.rule;
  const bool copies = config.keys == forward::KeySource::page_rows;
  const bool crowded = rule.chunked || rule.mask_left || rule.alibi || rule.max_logits || rule.softcap;
  if (rule.block_mask != 0) return {copies ? 64 : 56, copies ? 128 : 136, 0};
  if (rule.bias || rule.dropout) return {copies ? 64 : 40, copies ? 128 : 152, 0};
  if (copies) return {64, 128, crowded ? 64 : 128};
  if (crowded) return {40, 152, 128};
  if (config.schedule == Schedule::split) return {40, 152, 192};
  return rule.varlen ? WideRegisters{40, 152, 256} : WideRegisters{32, 160, 256};
}

}  // namespace

Config with_wide_columns(const Config& call, const AttentionProblem& problem) {
  Config config = call;
  config.head_dim = round_up(static_cast<int>(std::max<std::int64_t>(problem.head_dim, 1)), kPanelColumns);
  config.head_dim_v = *std::ranges::lower_bound(kCompiledColumnsOfV, static_cast<int>(problem.head_dim_v));
  return config;
}

Config with_wide_tiles(const Config& call) {
  Config config = call;
  config.loop = forward::Loop::wide;
  config.consumer_warpgroups = 1;
  config.output_warpgroups = 2;
  config.block_n = kPanelColumns;
  config.ping_pong = false;
  config.stages = kBytesOfV / tile_bytes(config.block_n, output_columns(config));
  return config;
}

Config completed_wide(const Config& tiles) {
  Config config = tiles;
  const WideRegisters registers = wide_registers(tiles);
  config.producer_registers = registers.producer;
  config.consumer_registers = registers.consumer;
  config.output_registers = kOutputRegisters;
  config.register_columns = std::min(registers.columns, tiles.head_dim);
  config.output_stages = 1;
  config.key_panels = kMostKeyPanels;
  while (config.key_panels > 2 && smem_plan(config).total_bytes > kMaxSmemBytes) --config.key_panels;
  return config;
}

}  // namespace strobe::sm90
