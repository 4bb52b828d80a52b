// SPDX-License-Identifier: Apache-2.0
// One variant of the forward kernel is one value of Config: a structural type, so that it is the kernel's only template
// argument, printed, compared and hashed by its fields. Plain constexpr C++ without std headers: the host's compiler
// reads it for the launch and NVRTC for the kernel.
#pragma once

#include "kernels/math/row_format.h"
#include "kernels/score/rule.h"
#include "kernels/sm90/scheduler/schedule.h"
#include "kernels/sm90/tile/warpgroup.h"

namespace strobe::sm90::forward {

/// How producers bring K and V to shared memory.
enum class KeySource : unsigned char {
  tensor,          // TMA, a box a block
  page_blocks,     // from pages, TMA: a box a block, which lies in one page
  page_boxes,      // from pages, TMA: boxes that lie in one page each
  page_rows,       // from pages of any size: every lane copies pieces of rows
  rows_in_format,  // from pages of one row: every lane reads pieces of rows as they are stored, and converts them
};

/// How consumers go over a tile's blocks of keys.
enum class Loop : unsigned char {
  pipelined,         // softmax of a block under P V of the one before it, on over the tiles: consume/pipelined.h
  serial,            // scores, softmax and P V of a block one after another: consume/serial.h
  eight_bit,         // 8-bit operands, softmax of a block under P V of the one before it: consume/eight_bit.h
  eight_bit_serial,  // 8-bit operands, one after another, P V in pieces: consume/eight_bit.h
  wide,              // heads of more than 256 columns: one warpgroup's scores, O in others: consume/wide.h
};

struct Config {
  ScoreRule rule;
  int head_dim = 128;           // of Q and K as compiled: 32, 64, 96, 128, 192 or 256; TMA's bounds pad narrower heads
  int head_dim_v = 128;         // of V and O, likewise
  int consumer_warpgroups = 2;  // each owns 64 rows of Q
  int producer_warpgroups = 1;  // 2: the second converts stored keys and values, as the first one's last three warps do
  int block_n = 128;            // keys per step
  int stages = 2;               // of the K ring and of the V ring
  int q_stages = 1;  // of each warpgroup's Q: with 2, the next tile's rows arrive while this one's are in use

  Loop loop = Loop::pipelined;
  bool ping_pong = true;  // one warpgroup's softmax runs under the other's GEMMs

  int ctas_per_sm = 1;  // resident CTAs: with 2, one loads and stores while the other computes

  // Query heads of one key head that share a tile, its rows being position * packed_heads + head: so that few queries
  // fill it. A power of two, at most 64.
  int packed_heads = 1;
  Schedule schedule = Schedule::rounds;
  int table_sequences = kMaxTableSequences;  // of a sorted or split schedule's table: a smaller one leaves memory

  // Of the products. 8 bits have loops of their own: V lies transposed, and rule.element is O's.
  Element operands = rule.element;
  int keys_per_value_scale = 1;  // 1, or e4m3: 32, int8: block_n; 32 keys share a scale of K
  int rotated_columns = 0;       // O is rotated back, as V of so many columns was rotated; 0: not
  bool float_output = false;     // O holds float32, whatever rule.element says

  // What producers convert to rule.element: K and V as they are stored. Where it is rule.element, they convert nothing.
  Element stored = rule.element;
  int raw_stages = 0;  // of the ring of blocks of K and V as they are stored

  KeySource keys = KeySource::tensor;
  StoredFormat format = {};  // of rows_in_format
  bool entries = false;      // K and V of a sequence are an entry that a list names

  // Queries see keys of their own chunk only, and chunks begin where tiles and blocks of keys do: a tile's keys end and
  // begin with its chunk, and no score is looked at for that. The rule is that of a call without chunks.
  bool whole_chunks = false;

  // Bias rules: stages of the ring by which TMA brings each warpgroup its rows' bias; 0: consumers fetch it themselves.
  int bias_stages = 0;

  // Row-invariant calls: key blocks of a segment, counted from the sequence's first key, whose sums begin afresh and
  // then join those of the segments after it; 0: a row's keys are one segment.
  int segment_blocks = 0;
  bool keeps_in_smem = false;  // what later segments left: else in global memory

  // Pipelined loops find the next tile under the products of a tile's first block: hundreds of cycles of dependent
  // integer arithmetic, which take registers.
  bool looks_ahead = true;

  // Pipelined loops wait for V when Q K^T is issued, so that it may arrive meanwhile: else before.
  bool late_values = true;

  // Masks are a bit for each score: else its column is compared, which takes fewer registers.
  bool masks_by_words = true;

  // Each warpgroup stops at the first block that its own rows see, and lets the others' pass.
  bool own_begins = false;

  // Scores come without what ALiBi adds to all of a row's.
  bool relative_alibi = false;

  // Softcap and softmax share a multiply-add where all keys are visible: else scores are softcapped first.
  bool caps_in_softmax = false;

  // 8-bit operands: a tile's numbers are found anew where they are wanted, instead of kept in registers.
  bool finds_work_again = false;

  // int8 operands: of P, those whose exponentials begin while P V of the block before may still read its P.
  int exponentials_ahead = 0;

  // Few queries wait for their keys: the page table is read one block ahead of the block that is wanted.
  bool pages_ahead = false;

  int output_stages = 2;  // panels of O that a warp may have on their way to global memory

  // Of a thread, once the roles are known: what the producers give up, the consumers get.
  int producer_registers = 24;
  int consumer_registers = 240;

  // Wide loops. The consumer computes scores and probabilities of its 64 rows; as many more warpgroups hold a part of
  // O's columns each. `stages` are V's: a block of keys and one warpgroup's columns.
  int output_warpgroups = 0;
  int output_registers = 0;  // of their threads
  int key_panels = 0;        // stages of the ring of K, 64 columns of a block each
  int register_columns = 0;  // of Q that the consumer keeps in registers: the others stay in shared memory

  // V is K's first columns: those are loaded once, 128 to a stage of V's ring. The ring of K has the columns behind.
  bool values_in_keys = false;

  // Rows in a format: two CTAs, a cluster, have tiles of the same keys. Each converts half of the rows, for both.
  bool in_pairs = false;

  bool debug = false;  // waits trap instead of hanging, shared memory starts as NaN

  bool operator==(const Config&) const = default;
};

constexpr bool eight_bit(const Config& c) { return is_eight_bit(c.operands); }
constexpr int operand_bytes(const Config& c) { return eight_bit(c) ? 1 : 2; }

constexpr bool is_wide(const Config& c) { return c.loop == Loop::wide; }

/// CTAs of a cluster.
constexpr int cluster_ctas(const Config& c) { return c.in_pairs ? kPairCtas : 1; }

/// Columns of O that one warpgroup holds.
constexpr int output_columns(const Config& c) { return is_wide(c) ? c.head_dim_v / c.output_warpgroups : c.head_dim_v; }

/// Columns of a stage of V's ring where V is K's first columns.
inline constexpr int kSharedColumns = 128;

/// Columns of a stage of V's ring.
constexpr int stage_columns(const Config& c) { return c.values_in_keys ? kSharedColumns : output_columns(c); }

/// Warpgroups that store O.
constexpr int storing_warpgroups(const Config& c) { return is_wide(c) ? c.output_warpgroups : c.consumer_warpgroups; }

constexpr bool converts(const Config& c) { return c.stored != c.rule.element; }

/// The fewest rows of a box that TMA reads of a page: an atom of the swizzle.
inline constexpr int kLeastBoxRows = 8;

/// Rules with query_values: which column of the longer rows is the first of Q and K themselves. Where V's columns are
/// loaded once, there are as many as compiled.
template <typename Params>
constexpr int first_own_column(const Config& c, const Params& params) {
  if (!c.rule.query_values) return 0;
  return c.values_in_keys ? c.head_dim_v : params.head_dim_v;
}

/// Whether a tensor map more is handed over: the bias's, or the second query's. No variant has both.
constexpr bool has_other_map(const Config& c) { return c.bias_stages > 0 || c.rule.query_values; }

constexpr bool in_pages(const Config& c) { return c.keys != KeySource::tensor; }
/// Those that TMA reads.
constexpr bool in_page_boxes(const Config& c) {
  return c.keys == KeySource::page_blocks || c.keys == KeySource::page_boxes;
}

/// Whether a CTA joins the segments of its tiles; on split schedules each segment is a part.
constexpr bool folds(const Config& c) { return c.segment_blocks > 0 && c.schedule != Schedule::split; }

constexpr int block_m(const Config& c) { return kRowsPerWarpgroup * c.consumer_warpgroups; }

/// Blocks that one warpgroup may let pass between two tiles where each has its own begin, at most: of the first those
/// left of its own rows' windows, of the second those right of the diagonal. It keeps V's stages meanwhile.
constexpr int most_blocks_between(const Config& c) {
  int most = 0;
  for (int w = 0; w < c.consumer_warpgroups; ++w) {
    const int left = (w * kRowsPerWarpgroup + c.block_n - 1) / c.block_n;
    const int right = ((c.consumer_warpgroups - 1 - w) * kRowsPerWarpgroup + c.block_n - 1) / c.block_n;
    most = left + right > most ? left + right : most;
  }
  return most;
}

/// Whether V's ring has room for those blocks. With ping-pong others wait for a V behind them, too.
constexpr bool own_begins_fit(const Config& c) { return most_blocks_between(c) <= c.stages - (c.ping_pong ? 1 : 0); }

constexpr int threads_per_block(const Config& c) {
  return kWarpgroupSize * (c.consumer_warpgroups + c.producer_warpgroups + c.output_warpgroups);
}

/// Whether consumers are told of each stage of K which block it holds and what a block mask says of it, by the producer
/// that has walked there: else each walks over the mask as well, which takes registers.
constexpr bool has_key_tags(const Config& c) {
  return c.rule.block_mask != 0 && c.keys == KeySource::tensor && !c.entries && !converts(c) && !eight_bit(c) &&
         !is_wide(c) && block_m(c) <= 2 * c.rule.block_mask;
}

/// Whether the bits of a block that is shown in part come with its keys. Wider tiles leave them no shared memory.
constexpr bool brings_block_bits(const Config& c) {
  return has_key_tags(c) && has_block_bits(c.rule) && c.head_dim <= 64 && c.head_dim_v <= 64;
}

/// Registers of a thread at launch: 64 K over the threads of the resident CTAs, rounded down to eights. setmaxnreg
/// waits forever where the roles together want more, and is illegal where it is to increase them to fewer.
constexpr int registers_at_launch(const Config& c) { return 65536 / (c.ctas_per_sm * threads_per_block(c)) / 8 * 8; }

constexpr Tiling tiling(const Config& c) {
  return {.rule = c.rule,
          .schedule = c.schedule,
          .block_m = block_m(c),
          .block_n = c.block_n,
          .packed_heads = c.packed_heads,
          .threads = threads_per_block(c),
          .heads_outermost = is_wide(c),
          .bisects = is_wide(c),
          .in_pairs = c.in_pairs,
          .table_sequences = c.table_sequences,
          .debug = c.debug,
          .segment_blocks = c.segment_blocks};
}

}  // namespace strobe::sm90::forward
