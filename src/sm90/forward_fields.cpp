// SPDX-License-Identifier: Apache-2.0
#include "sm90/forward_fields.h"

#include "kernels/score/modifiers/softcap.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/forward_registers.h"
#include "sm90/wide_tiles.h"

namespace strobe::sm90 {
namespace {

using forward::Config;
using forward::Loop;

/// Four warpgroups have no registers to look ahead, nor have three with a softcap, a bias or segments. Fetched bias,
/// dropout, block masks and texts of scores take them from any number; split schedules have few tiles.
bool looks_ahead(const Config& c) {
  const bool fetches_bias = c.rule.bias && c.bias_stages == 0;
  const int most = c.rule.softcap || c.rule.bias || folds(c) ? 2 : 3;
  return c.consumer_warpgroups <= most && !c.rule.chunked && !fetches_bias && !c.rule.dropout && !c.rule.text.score &&
         c.rule.block_mask == 0 && c.schedule != Schedule::split;
}

/// Steps that take a bias, random bits or a block's number from elsewhere let V arrive meanwhile.
bool has_late_values(const Config& c) {
  const bool fetches_bias = c.rule.bias && c.bias_stages == 0;
  return !fetches_bias && !c.rule.dropout && c.rule.block_mask == 0;
}

/// As registers allow, and compiling shows.
bool has_masks_by_words(const Config& c) {
  const bool is_tight = eight_bit(c) && (sums_by_block(c) || c.loop == Loop::eight_bit_serial) && c.head_dim_v > 64;
  return !is_tight || !has_diagonal(c.rule);
}

/// As registers allow. e4m3's wait for P V: faster than beside it. log: int8-early-exponentials
int exponentials_ahead_of(const Config& c) {
  if (!sums_by_block(c) || c.loop != Loop::eight_bit) return 0;
  return is_masked(c.rule) && c.head_dim_v > 64 ? 1 : 2;
}

/// Where blocks are short enough for it to differ, and registers are left for it.
bool has_own_begins(const Config& c) {
  return c.rule.mask_left && c.consumer_warpgroups > 1 && c.block_n <= kRowsPerWarpgroup && !c.rule.chunked &&
         !c.rule.softcap && !c.rule.alibi && !c.rule.max_logits && !eight_bit(c) && c.schedule != Schedule::split &&
         c.segment_blocks == 0 && !has_key_tags(c) && own_begins_fit(c);
}

/// Of the largest scores nothing may be missing; and of more warpgroups ptxas spills what it takes to know on which
/// side of the diagonal a block is. Row-invariant variants all do the same, however many their warpgroups are.
bool takes_relative_alibi(const Config& c) {
  return c.rule.alibi && !has_text(c.rule) && c.rule.normalized && !c.rule.max_logits && !c.rule.row_invariant &&
         (c.consumer_warpgroups <= 2 || (c.rule.mask_right && !c.rule.varlen));
}

/// Split schedules store few whole tiles: what one stage leaves of shared memory lets CTAs of `combine` be there beside
/// this one's when it ends. So do others of which a second stage would take a stage of Q, of K and V, or of the bias.
int output_stages_of(const Config& c) {
  const bool one = panels(c.head_dim_v) == 1 || text_bytes(c) > 0 || c.schedule == Schedule::split ||
                   (converts(c) && c.head_dim_v > 128) || c.bias_stages > 1 ||
                   (c.bias_stages > 0 && c.rule.bias_float32);
  return one ? 1 : 2;
}

}  // namespace

Config completed(const Config& tiles) {
  if (is_wide(tiles)) {
    Config wide = completed_wide(tiles);
    wide.relative_alibi = takes_relative_alibi(tiles);
    return wide;
  }
  Config config = tiles;
  const RoleRegisters registers = role_registers(tiles);
  config.producer_registers = registers.producer;
  config.consumer_registers = registers.consumer;
  config.output_stages = output_stages_of(tiles);
  if (!eight_bit(tiles)) config.loop = loop_of(tiles);  // of 8-bit operands it comes with the tiles
  config.looks_ahead = config.loop != Loop::pipelined || looks_ahead(tiles);
  config.late_values = config.loop != Loop::pipelined || has_late_values(tiles);
  config.masks_by_words = has_masks_by_words(config);
  config.exponentials_ahead = exponentials_ahead_of(config);
  config.own_begins = has_own_begins(tiles);
  config.relative_alibi = takes_relative_alibi(tiles);
  config.caps_in_softmax = !eight_bit(tiles) && score::may_cap_in_softmax(tiles.rule);
  config.pages_ahead =
      in_pages(tiles) && !converts(tiles) && tiles.consumer_warpgroups == 1;  // log: pages-lookup-ahead
  config.finds_work_again = tiles.loop == Loop::eight_bit_serial && !sums_by_block(tiles);
  return config;
}

}  // namespace strobe::sm90
