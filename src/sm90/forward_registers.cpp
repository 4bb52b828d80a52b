// SPDX-License-Identifier: Apache-2.0
#include "sm90/forward_registers.h"

#include <algorithm>

#include "kernels/score/params.h"
#include "sm90/tile_candidates.h"

namespace strobe::sm90 {
namespace {

using forward::Config;
using forward::KeySource;
using forward::Loop;

int warpgroups_per_sm(const Config& c) { return c.consumer_warpgroups * c.ctas_per_sm; }

/// Registers of a thread that hold scores, probabilities, output and a fetched bias.
int tile_registers(const Config& c) {
  const int bias = !c.rule.bias || c.bias_stages > 0 ? 0 : c.rule.bias_float32 ? c.block_n / 2 : c.block_n / 4;
  return c.block_n / 2 + c.block_n / 4 + c.head_dim_v / 2 + bias;
}

/// How many of a consumer's registers tiles may take: the rest are operands, addresses, running maxima and sums, and
/// what options keep. Larger tiles spill, as compiling them shows.
int most_tile_registers(const Config& c) {
  const bool fetches_bias = c.rule.bias && c.bias_stages == 0;
  if (warpgroups_per_sm(c) == 4) return 84;                                                          // of 112
  if (c.consumer_warpgroups == 3) return fetches_bias && option_registers(c.rule) > 24 ? 112 : 132;  // of 160
  if (c.rule.dropout) return 176;                                                                    // of 216 to 240
  return c.rule.tree_mask && c.bias_stages == 0 ? 156 : 188;  // log: sm90-forward-tree-masks-table
}

/// How many registers tiles and options may take together in a pipelined loop.
int most_pipelined_registers(const Config& c) {
  int most = 220;
  if (converts(c)) most = 184;  // of 208
  if (c.segment_blocks > 0 && c.consumer_warpgroups <= 2) most = c.head_dim_v > 128 ? 0 : 180;
  // A part's numbers take registers, too; and a serial loop still is faster than keys arrive.
  if (c.schedule == Schedule::split) {
    most = std::min(most, c.keys == KeySource::page_rows && c.consumer_warpgroups > 1 ? 167 : 175);
  }
  return most;
}

}  // namespace

RoleRegisters role_registers(const Config& c) {
  const bool two_ctas = c.ctas_per_sm == 2;
  const bool long_params = c.rule.varlen || c.rule.chunked || eight_bit(c);  // rows to find, or scales to bring
  if (c.producer_warpgroups > 1) return {120, 240};
  if (converts(c)) return {88, 208};
  if (warpgroups_per_sm(c) == 4 && two_ctas && c.rule.varlen) return {40, 96};
  if (warpgroups_per_sm(c) == 4) return {32, two_ctas ? 104 : 112};
  if (c.consumer_warpgroups == 3) return {32, 160};
  if (c.keys == KeySource::page_rows) {
    const int consumer = c.rule.block_mask != 0 ? (two_ctas ? 184 : 216)
                         : two_ctas             ? 208
                                                : (c.consumer_warpgroups == 1 ? 240 : 224);
    return {two_ctas ? 48 : c.consumer_warpgroups == 1 ? 72 : 56, consumer};
  }
  if (c.rule.block_mask != 0) return {72, two_ctas ? 184 : 216};
  if (two_ctas) return {long_params ? 40 : 24, long_params ? 216 : 232};
  return {long_params ? 40 : 24, long_params ? 232 : 240};
}

int option_registers(const ScoreRule& rule) {
  const int modifiers = (rule.softcap ? kSoftcapRegisters : 0) + (rule.alibi ? kAlibiRegisters : 0) +
                        (rule.bias ? kBiasRegisters : 0) + (rule.dropout ? kDropoutRegisters : 0) +
                        (rule.tree_mask ? kTreeMaskRegisters : 0) + (has_text(rule) ? kTextRegisters : 0) +
                        (rule.block_mask != 0 ? kBlockMaskRegisters : 0) +
                        (has_block_bits(rule) ? kBlockBitsRegisters : 0);
  const int others = int{rule.max_logits} + int{rule.mask_left} + int{rule.varlen || rule.chunked};
  return modifiers + 8 * others;
}

bool fits_registers(const Config& config) {
  const bool narrowest = config.block_n == *std::ranges::min_element(kBlockN);
  return narrowest || tile_registers(config) <= most_tile_registers(config);
}

Loop loop_of(const Config& config) {
  const ScoreRule& rule = config.rule;
  if (config.bias_stages > 0) return Loop::pipelined;
  // Warpgroups whose rows see different blocks must go from block to block on their own.
  if (rule.block_mask == kRowsPerWarpgroup && config.consumer_warpgroups > 1) return Loop::serial;
  // Four warpgroups have no registers for a second block beside a text, nor for one beside a walk over blocks.
  if (warpgroups_per_sm(config) == 4 && (has_text(rule) || rule.block_mask != 0)) return Loop::serial;
  if (rule.dropout && has_block_bits(rule)) return Loop::serial;
  if (rule.row_invariant && rule.tree_mask && config.consumer_warpgroups <= 2) return Loop::serial;
  // Joining segments and a text's values of diagonals together leave three warpgroups no registers for a second block.
  if (config.segment_blocks > 0 && rule.text.diagonal_values > 0 && config.consumer_warpgroups == 3) {
    return Loop::serial;
  }
  // Nor do producers that convert leave them to segments that are parts.
  if (config.segment_blocks > 0 && converts(config) && config.schedule == Schedule::split) return Loop::serial;
  const int chunks = config.whole_chunks ? 16 : 0;  // as chunks and their left masks take
  const int registers = tile_registers(config) + option_registers(rule) + chunks;
  return registers > most_pipelined_registers(config) ? Loop::serial : Loop::pipelined;
}

}  // namespace strobe::sm90
