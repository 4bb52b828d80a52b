// SPDX-License-Identifier: Apache-2.0
#include "sm90/wide_tiles.h"

#include <algorithm>
#include <iterator>

#include "call/arithmetic.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/dealt_tiles.h"
#include "sm90/pages.h"

namespace strobe::sm90 {
namespace {

using forward::Config;

constexpr int kCompiledColumnsOfV[] = {256, 384, 512};  // halves of which are whole panels
constexpr int kMostColumnsOfV = 512;
constexpr int kBytesOfV = 96 * 1024;   // three blocks of one warpgroup's 256 columns
constexpr int kOutputRegisters = 160;  // of which 128 hold O; the others' sum is 192
constexpr int kMostKeyPanels = 16;
constexpr int kMostSharedStages = 12;
constexpr int kFewSequences = 256;  // whose table leaves room for a stage more

/// Registers of the other two roles, and Q's columns that the consumer has registers for: as compiling shows.
struct WideRegisters {
  int producer = 0, consumer = 0, columns = 0;
  int output = kOutputRegisters;
};

/// What else than plain scores the consumer has registers for.
bool is_crowded(const ScoreRule& rule) {
  return rule.chunked || rule.mask_left || rule.alibi || rule.max_logits || rule.softcap || rule.tree_mask;
}

/// Where V is K's first columns, one warp finds and loads all of a block, or four copy it. Four that convert take
/// registers from the consumer, which then reads all of Q from shared memory.
WideRegisters shared_registers(const Config& config) {
  const ScoreRule& rule = config.rule;
  const bool splits = config.schedule == Schedule::split;
  if (config.keys == forward::KeySource::rows_in_format) return {96, 96, 0};
  if (config.keys == forward::KeySource::page_rows) {
    const bool crowded = rule.mask_right && config.schedule != Schedule::sorted;
    return {48, 144, splits ? 192 : crowded ? 256 : 320};
  }
  if (splits && rule.varlen) return {40, 152, 192};
  if (splits) return rule.query_values ? WideRegisters{48, 144, 256} : WideRegisters{40, 152, 256};
  if (!rule.mask_right) return {32, 160, 384};
  return rule.varlen ? WideRegisters{40, 152, 256} : WideRegisters{32, 160, 320};
}

/// With a second query and V apart the producer has a tensor more.
WideRegisters query_values_registers(const Config& config) {
  const ScoreRule& rule = config.rule;
  if (config.keys != forward::KeySource::page_rows) return {56, 136, 0};
  const bool is_plain = !rule.softcap && !rule.alibi && !rule.bias && !rule.dropout;
  const bool searches = rule.block_mask != 0 || config.schedule == Schedule::split;  // the producers do
  const bool walks = is_plain && (rule.mask_left || rule.chunked);
  return searches || walks ? WideRegisters{72, 120, 0} : WideRegisters{64, 128, 0};
}

WideRegisters wide_registers(const Config& config) {
  const ScoreRule& rule = config.rule;
  const bool copies = config.keys == forward::KeySource::page_rows;
  const bool crowded = is_crowded(rule);
  if (config.values_in_keys) return shared_registers(config);
  if (rule.query_values) return query_values_registers(config);
  if (has_text(rule)) return {copies ? 64 : 48, copies ? 128 : 144, 0};
  if (rule.block_mask != 0) return {copies ? 64 : 56, copies ? 128 : 136, 0};
  if (rule.row_invariant) return {copies ? 64 : 40, copies ? 128 : 152, 64};  // the same in all calls
  if (rule.bias || rule.dropout) return {copies ? 64 : 40, copies ? 128 : 152, 0};
  if (copies) return {64, 128, crowded || config.schedule == Schedule::split ? 64 : 128};
  if (crowded) return {40, 152, 128};
  if (config.schedule == Schedule::split) {
    return rule.varlen ? WideRegisters{48, 128, 64, 168} : WideRegisters{40, 152, 192};
  }
  const bool searches = rule.varlen || config.schedule == Schedule::dealt;  // for the next tile
  return searches ? WideRegisters{40, 152, 256} : WideRegisters{32, 160, 256};
}

/// Stages of V's ring, which K is in, as many as fit, and one of the columns behind.
Config with_shared_stages(const Config& tiles) {
  Config config = tiles;
  config.output_stages = forward::kSharedColumns / kPanelColumns;
  config.key_panels = 1;
  config.stages = kMostSharedStages;
  while (smem_plan(config).total_bytes > kMaxSmemBytes) --config.stages;
  return config;
}

/// Two tiles whose rows see the same keys, CTAs of a cluster, which convert those once. All tiles must be such pairs,
/// one beside the other in the order in which CTAs take them. What TMA loads is not faster in pairs. log: wide-pairs
bool converts_in_pairs(const Config& config, const AttentionProblem& problem) {
  if (config.keys != forward::KeySource::rows_in_format || has_diagonal(config.rule)) return false;
  const std::int64_t heads = problem.heads_q / config.packed_heads;
  const std::int64_t m_tiles = m_tiles_of(problem, config);
  if (config.schedule == Schedule::split) return heads % 2 == 0;
  if (config.rule.varlen && m_tiles > 1) return false;  // of two tiles of a head a shorter sequence may have one
  return config.schedule == Schedule::rounds && heads * m_tiles % 2 == 0;
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

std::optional<Config> with_values_in_keys(const Config& tiles, const AttentionProblem& problem) {
  const ScoreRule& rule = tiles.rule;
  const bool has_widths = problem.head_dim == tiles.head_dim && problem.head_dim_v == kMostColumnsOfV &&
                          problem.head_dim >= problem.head_dim_v;
  if (!is_wide(tiles) || !has_widths || problem.heads_kv != 1) return std::nullopt;
  if (rule.row_invariant) return std::nullopt;  // it adds up columns of K in another order
  // These take registers that V's ring has, too.
  if (rule.bias || rule.dropout || rule.block_mask != 0 || has_text(rule) || is_crowded(rule)) return std::nullopt;
  if (rule.mask_right && tiles.schedule == Schedule::split) return std::nullopt;
  Config config = tiles;
  config.values_in_keys = true;
  // Boxes of a part of a block take longer than rows that threads copy. log: wide-row-copies
  if (config.keys == forward::KeySource::page_boxes) config.keys = forward::KeySource::page_rows;
  config.in_pairs = converts_in_pairs(config, problem);
  if (config.schedule == Schedule::sorted && problem.batch <= kFewSequences) config.table_sequences = kFewSequences;
  return config;
}

Config completed_wide(const Config& tiles) {
  Config config = tiles;
  const WideRegisters registers = wide_registers(tiles);
  config.producer_registers = registers.producer;
  config.consumer_registers = registers.consumer;
  config.output_registers = registers.output;
  config.register_columns = std::min(registers.columns, tiles.head_dim);
  if (config.values_in_keys) return with_shared_stages(config);
  config.output_stages = 1;
  config.key_panels = kMostKeyPanels;
  while (config.key_panels > 2 && smem_plan(config).total_bytes > kMaxSmemBytes) --config.key_panels;
  return config;
}

}  // namespace strobe::sm90
