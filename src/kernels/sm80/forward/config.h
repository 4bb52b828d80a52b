// SPDX-License-Identifier: Apache-2.0
// One variant of the forward kernel is one value of Config: a structural type, so that it is the kernel's only template
// argument, printed, compared and hashed by its fields. Plain constexpr C++ without std headers: the host's compiler
// reads it for the launch and NVRTC for the kernel.
#pragma once

#include "kernels/scheduler/tiling.h"
#include "kernels/score/rule.h"
#include "kernels/sm80/tile/warp.h"

namespace strobe::sm80::forward {

struct Config {
  ScoreRule rule;
  int head_dim = 128;      // of Q and K as compiled: 32 to 256, of sliced tiles to 576; narrower heads end in zeros
  int head_dim_v = 128;    // of V and O, likewise
  int warps = 4;           // each owns its rows of Q
  int key_groups = 1;      // of warps: all groups have the same rows, and take turns at the key blocks
  int column_warps = 1;    // that share rows: each has the scores of some of a block's keys, and some columns of O
  int rows_per_warp = 32;  // 16, or 32: then each operand that is read of K and V serves two products
  int block_n = 64;        // keys per step
  int stages = 2;          // of K and of V, of a group; with 1, each arrives under the product with the other
  int slice_columns = 0;   // K and V arrive in slices of a block's columns, in a ring of `stages`; 0: as whole blocks
  bool q_in_registers = false;  // else read from shared memory in each step
  int ctas_per_sm = 2;          // resident CTAs: the softmax of one runs under the products of the other

  // Query heads of one key head that share a tile, its rows being position * packed_heads + head: so that few queries
  // fill it. A power of two.
  int packed_heads = 1;
  Schedule schedule = Schedule::rounds;  // a tile for each CTA; or split

  // Row-invariant calls: key blocks of a segment, counted from the sequence's first key, whose sums begin afresh and
  // then join those of the segments after it; 0: a row's keys are one segment.
  int segment_blocks = 0;

  bool pages = false;    // K and V lie in pages
  bool entries = false;  // K and V of a sequence are an entry that a list names

  // K and V as they are stored. If that is not rule.element, each block is converted to it in shared memory, or stored
  // elements are operands: as float16 numbers, which hold them exactly, while their scales join scores, probabilities
  // and O.
  Element stored = rule.element;
  bool stored_operands = false;
  bool row_scales = false;  // of stored operands: keys have scales of their own, else a head has one for all
  // Of stored K and V, chunks that a lane reads before it writes the first, of rows of up to 128 columns: 1, 2 or 4.
  int chunks_at_once = 2;

  // Copies start as soon as there is a stage for them, before the step's products: else under those.
  bool copies_first = false;

  // A warp looks up the pages of a block, a piece a lane, while it copies the block before.
  bool pages_ahead = false;

  // Rows of a piece of a block that lie in one page, one behind another: 1 or 16.
  int page_rows = 1;

  // A CTA's tile lies in shared memory: else it is found anew where it is wanted.
  bool keeps_work = false;

  bool debug = false;  // shared memory starts as NaN

  bool operator==(const Config&) const = default;
};

/// Rules with query_values: which column of the longer rows is the first of Q and K themselves.
template <typename Params>
constexpr int first_own_column(const Config& c, const Params& params) {
  return c.rule.query_values ? params.head_dim_v : 0;
}

/// Of a group.
constexpr int row_warps(const Config& c) { return c.warps / c.key_groups / c.column_warps; }
constexpr int block_m(const Config& c) { return row_warps(c) * c.rows_per_warp; }
constexpr int threads_per_block(const Config& c) { return c.warps * kWarpSize; }
constexpr int threads_per_group(const Config& c) { return c.warps / c.key_groups * kWarpSize; }
constexpr bool sliced(const Config& c) { return c.slice_columns != 0; }

/// Of a block, whose scores a warp has, and of the rows of O, which it writes to memory.
constexpr int warp_keys(const Config& c) { return c.block_n / c.column_warps; }
constexpr int stored_rows(const Config& c) { return c.rows_per_warp / c.column_warps; }
constexpr int fragments(const Config& c) { return c.rows_per_warp / kFragmentRows; }
constexpr bool splits(const Config& c) { return c.schedule == Schedule::split; }

/// Whether a CTA joins the segments of its tiles, one tile after another; on split schedules each segment is a part.
constexpr bool folds(const Config& c) { return c.segment_blocks > 0 && !splits(c); }

/// Few queries take so little time that the way from one kernel to the next counts: theirs begins under the one before.
constexpr bool overlaps_previous(const Config& c) { return c.key_groups > 1; }

/// What a thread of a CTA that folds keeps: vectors of four floats of O, and for each fragment its rows' maxima and
/// sums.
constexpr int kept_vectors(const Config& c) { return fragments(c) * (c.head_dim_v / 8 + 1); }

/// 16-bit columns of a row of as many elements: what tiles and copies count.
constexpr int halves(const Config& c, int columns) { return columns * halves_of(c.rule.element); }

constexpr bool is_stored(const Config& c) { return c.stored != c.rule.element; }
constexpr bool converts(const Config& c) { return is_stored(c) && !c.stored_operands; }

/// What the tensor cores multiply.
constexpr Element operand_of(const Config& c) { return c.stored_operands ? Element::fp16 : c.rule.element; }

/// Blocks on their way while one is in use. A stage is free as soon as its block is converted.
constexpr int stages_ahead(const Config& c) { return converts(c) ? c.stages : c.stages - 1; }

/// Sliced tiles: slices of K, and then of V, that a block has.
constexpr int key_slices(const Config& c) { return c.head_dim / c.slice_columns; }
constexpr int value_slices(const Config& c) { return c.head_dim_v / c.slice_columns; }

/// Whether slices are whole, and warps that share rows have whole operands of them.
constexpr bool slices_agree(const Config& c) {
  const bool whole = c.head_dim % c.slice_columns == 0 && c.head_dim_v % c.slice_columns == 0;
  const bool operands = c.slice_columns % (kStep * c.column_warps) == 0 && warp_keys(c) % kStep == 0;
  return whole && operands && c.stages > 1 && c.key_groups == 1 && !is_stored(c) && c.segment_blocks == 0 &&
         c.rule.element != Element::fp32 && !c.q_in_registers;
}

/// Whether the fields ask for what is possible.
constexpr bool fields_agree(const Config& c) {
  const bool pages =
      !c.pages_ahead || (c.pages && c.stages > 1 && threads_per_group(c) == kWarpSize && c.block_n <= kWarpSize);
  const bool pieces = c.page_rows == 1 || (c.pages_ahead && c.block_n % c.page_rows == 0);
  const bool work = c.keeps_work || !(splits(c) || folds(c));  // where a CTA has several tiles
  // A lane has the scales of one key of a block.
  const bool operands = !c.stored_operands || (is_stored(c) && c.key_groups > 1 && c.segment_blocks == 0 &&
                                               (!c.row_scales || c.block_n <= kWarpSize));
  const bool slices = sliced(c) ? slices_agree(c) : c.column_warps == 1;
  const bool joined = !c.rule.query_values || c.slice_columns == kJoinedColumns;
  return pages && pieces && work && operands && slices && joined;
}

constexpr Tiling tiling(const Config& c) {
  return {.rule = c.rule,
          .schedule = c.schedule,
          .block_m = block_m(c),
          .block_n = c.block_n,
          .packed_heads = c.packed_heads,
          .threads = threads_per_block(c),
          .segment_blocks = c.segment_blocks};
}

}  // namespace strobe::sm80::forward
