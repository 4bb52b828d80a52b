// SPDX-License-Identifier: Apache-2.0
// Where everything lies in a CTA's shared memory: evaluated by the host for the launch and by NVRTC for the kernel.
#pragma once

#include "kernels/math/eight_bit.h"
#include "kernels/score/modifiers/block_mask.h"
#include "kernels/score/modifiers/text.h"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/tile/panel.h"

namespace strobe::sm90::forward {

// O leaves a warp panel by panel through a small ring of its own, so that Q, K and V need not wait for it.
constexpr int kOutputPanelBytes = tile_bytes(kRowsPerWarp, kPanelColumns);
// 8-bit operands: keys that an A operand of P holds, keys that share a scale of K, and what a block's scales take.
constexpr int kOperandKeys = 32;
constexpr int kKeysPerScale = kGroupRows;
constexpr int key_scales(const Config& c) { return c.block_n / kKeysPerScale; }
constexpr int value_scales(const Config& c) { return c.block_n / c.keys_per_value_scale; }
constexpr int scale_bytes(const Config& c) {
  return eight_bit(c) ? (4 * (value_scales(c) + 2 * key_scales(c) + 1) + 15) / 16 * 16 : 0;
}

/// Whether P V of a block is summed apart: integers, whose probabilities are relative to the block's largest. e4m3,
/// whose precision is relative, has one reference for the row, and sums on in O, until what it has joins sums in shared
/// memory.
constexpr bool sums_by_block(const Config& c) { return c.operands == Element::int8; }

/// Whether sums of O lie outside of registers for a while: those of e4m3, in shared memory, and what segments leave.
constexpr bool keeps_output_in_smem(const Config& c) {
  return folds(c) ? c.keeps_in_smem : eight_bit(c) && !sums_by_block(c) && c.loop != Loop::eight_bit_serial;
}
constexpr int kept_bytes(const Config& c) {
  return keeps_output_in_smem(c) ? 4 * kRowsPerWarpgroup * c.head_dim_v : 0;  // of one warpgroup
}

/// V lies as it does in memory: its rows are keys, or 8-bit columns.
constexpr int value_tile_bytes(const Config& c) {
  return eight_bit(c) ? c.head_dim_v * panels_of_bytes(c.block_n) * kPanelRowBytes
                      : tile_bytes(c.block_n, c.head_dim_v);
}

/// Those that convert K and V: all but the one that loads.
constexpr int converter_warps(const Config& c) { return kWarpsPerWarpgroup * c.producer_warpgroups - 1; }

/// A block of K or V as it is stored.
constexpr int raw_bytes(const Config& c) {
  const int widest = c.head_dim > c.head_dim_v ? c.head_dim : c.head_dim_v;
  return converts(c) ? c.block_n * panels_of_bytes(widest) * kPanelRowBytes : 0;
}

/// The bias of a warpgroup's rows and a block's keys lies as TMA writes it without a swizzle, row after row. Eight
/// columns more than are used make eight rows' pieces of 16 bits, and four rows' of 32, lie in different banks.
constexpr int bias_columns(const Config& c) { return c.block_n + 8; }
constexpr int bias_row_bytes(const Config& c) { return bias_columns(c) * (c.rule.bias_float32 ? 4 : 2); }
constexpr int bias_bytes(const Config& c) { return kRowsPerWarpgroup * bias_row_bytes(c); }  // of a stage

/// Wide loops: blocks of P on their way from the consumer to the warpgroups that hold O.
constexpr int kProbabilityStages = 2;

/// What goes with a block of P: what becomes of O's rows before it joins them and, with a tile's last block, after.
struct BlockMessage {
  float correction[kRowsPerWarpgroup];
  float factor[kRowsPerWarpgroup];        // of the last block: the row's sum's inverse; negative: O is 0
  unsigned flags[kWarpsPerWarpgroup];     // of a warp's rows: kGrew and so on
  int row, offset, batch, m_begin, head;  // of the last block: where the tile's rows lie in the map of O
  int slot, rows;  // likewise: of a part of a tile, and its rows that exist; slot < 0: a whole tile
};

/// Whether values that a text needs are found once for rows, keys and diagonals of a warp's tile: of packed heads its
/// rows are no neighbours, and beside wide heads there is no memory.
constexpr bool keeps_text(const Config& c) {
  return has_text(c.rule) && c.packed_heads == 1 && c.head_dim <= kMostTextColumns && c.head_dim_v <= kMostTextColumns;
}

/// Of a warpgroup.
constexpr int text_bytes(const Config& c) {
  if (!keeps_text(c)) return 0;
  return 4 * text_words(c.rule.text, c.rule.text.key_values, c.rule.text.query_values, c.block_n, kWarpsPerWarpgroup);
}

/// A stage of K, as consumers are told of it: the number of its block, and of each row of blocks of a block mask that
/// the tile lies in, from bit 1 on, whether it sees the block and whether it sees it whole. Bit 0: another one follows.
/// 0: the tile has no block.
struct KeyTag {
  unsigned word = 0;

  static constexpr int kFlags = 5;

  constexpr bool is_none() const { return word == 0; }
  constexpr int block() const { return static_cast<int>(word >> kFlags); }
  constexpr bool is_followed() const { return (word & 1U) != 0; }
  constexpr bool is_seen(int row) const { return (word >> (2 * row + 1) & 1U) != 0; }
  constexpr bool is_whole(int row) const { return (word >> (2 * row + 2) & 1U) != 0; }
};

constexpr int key_tag_bytes(const Config& c) {
  return has_key_tags(c) ? (c.stages * static_cast<int>(sizeof(KeyTag)) + 7) / 8 * 8 : 0;
}

/// The bits of a block that is shown in part, of each of a tile's rows.
constexpr int block_bits_bytes(const Config& c) {
  return brings_block_bits(c) ? block_m(c) * kBlockWordsOfRow * static_cast<int>(sizeof(unsigned)) : 0;
}

struct SmemPlan {
  int q_bytes = 0;    // of one warpgroup and stage
  int k_bytes = 0;    // of one stage
  int v_bytes = 0;    // of one stage
  int p = 0;          // wide loops: blocks of P, 64 x 64
  int messages = 0;   // and what goes with them
  int raw_bytes = 0;  // of one stage
  int q = 0;          // offsets; tiles are 1024-byte aligned, as the swizzle asks
  int k = 0;
  int v = 0;
  int raw = 0;
  int o = 0;
  int kept = 0;    // float32 sums of O: of 8-bit operands, and of segments
  int scales = 0;  // 8-bit operands: a stage goes with one of V
  int bias = 0;    // of each warpgroup, stage by stage; 128-byte aligned
  int bits = 0;    // of a block mask: a stage goes with one of K; 16-byte aligned
  int text = 0;    // of each consumer warpgroup
  int tags = 0;    // KeyTag of each stage of K
  int barriers = 0;
  int order = 0;  // sorted and split schedules, and those of tiles that are taken: SequenceOrder, SplitWork, TileRing
  int total_bytes = 0;
};

/// mbarriers: full and empty for each stage of K and V, of blocks as they are stored, and of each warpgroup's Q and
/// bias.
constexpr int barrier_count(const Config& c) {
  if (is_wide(c)) {
    return 2 * (c.key_panels + c.stages + kProbabilityStages + c.q_stages * c.consumer_warpgroups);
  }
  return 4 * c.stages + 2 * c.raw_stages + 2 * (c.q_stages + c.bias_stages) * c.consumer_warpgroups;
}

/// Of split schedules' table.
constexpr int split_work_bytes(const Config& c) {
  return static_cast<int>(sizeof(SplitWork) - (kMaxTableSequences - c.table_sequences) * sizeof(int));
}

constexpr SmemPlan smem_plan(const Config& c) {
  SmemPlan plan;
  const int row_bytes = panels_of_bytes(c.head_dim * operand_bytes(c)) * kPanelRowBytes;
  plan.q_bytes =
      is_wide(c) ? tile_bytes(kRowsPerWarpgroup, c.head_dim - c.register_columns) : kRowsPerWarpgroup * row_bytes;
  plan.k_bytes = is_wide(c) ? tile_bytes(c.block_n, kPanelColumns) : c.block_n * row_bytes;
  plan.v_bytes = is_wide(c) ? tile_bytes(c.block_n, stage_columns(c)) : value_tile_bytes(c);
  plan.q = 0;
  plan.k = plan.q + c.consumer_warpgroups * c.q_stages * plan.q_bytes;
  plan.v = plan.k + (is_wide(c) ? c.key_panels : c.stages) * plan.k_bytes;
  plan.raw_bytes = raw_bytes(c);
  plan.raw = plan.v + c.stages * plan.v_bytes;
  plan.p = plan.raw + c.raw_stages * plan.raw_bytes;
  const int blocks_of_p = is_wide(c) ? kProbabilityStages : 0;
  plan.o = plan.p + blocks_of_p * tile_bytes(kRowsPerWarpgroup, kPanelColumns);
  // What segments leave is not in use when a tile's rows are stored: they pass through its memory. Where V is part of
  // K, they pass through the stages of the tile's last block.
  const bool has_stages = !c.keeps_in_smem && !c.values_in_keys;
  const int staged = has_stages ? storing_warpgroups(c) * kWarpsPerWarpgroup * c.output_stages : 0;
  plan.kept = plan.o + staged * kOutputPanelBytes;
  plan.scales = plan.kept + c.consumer_warpgroups * kept_bytes(c);
  plan.bias = plan.scales + c.stages * scale_bytes(c);
  plan.messages = plan.bias + c.consumer_warpgroups * c.bias_stages * bias_bytes(c);
  plan.bits = plan.messages + blocks_of_p * static_cast<int>(sizeof(BlockMessage));
  plan.text = plan.bits + c.stages * block_bits_bytes(c);
  plan.tags = plan.text + c.consumer_warpgroups * text_bytes(c);
  plan.barriers = plan.tags + key_tag_bytes(c);
  plan.order = plan.barriers + 8 * barrier_count(c);
  const int order_bytes = c.schedule == Schedule::sorted  ? sequence_order_bytes(c.table_sequences)
                          : c.schedule == Schedule::taken ? static_cast<int>(sizeof(TileRing))
                          : c.schedule == Schedule::split ? split_work_bytes(c)
                                                          : 0;
  plan.total_bytes = plan.order + order_bytes;
  return plan;
}

}  // namespace strobe::sm90::forward
