// SPDX-License-Identifier: Apache-2.0
// One variant of the backward's kernels is one value of Config, their only template argument. Plain constexpr C++
// without std headers: the host's compiler reads it for the launch and NVRTC for the kernels.
#pragma once

#include "kernels/score/capture_sums.h"
#include "kernels/score/modifiers/dropout.h"
#include "kernels/score/rule.h"
#include "kernels/sm80/tile/warp.h"

namespace strobe::sm80::backward {

struct Config {
  ScoreRule rule;
  int head_dim = 128;    // of Q and K as compiled: 32 to 256, 384 or 512; narrower heads are padded by zeros
  int head_dim_v = 128;  // of V, O and dO, likewise
  int block_m = 64;      // queries per step
  int part_m = 32;       // of these, how many a warp holds scores of at a time
  int warps = 8;
  int rows_per_warp = 32;  // keys whose dK and dV a warp holds: 16, or 32, and then each operand serves two products
  // Warps that share these keys: each holds its share of the columns of dK and dV, and computes the scores of its share
  // of the queries. P and dS pass from one to another through shared memory. With 1, they are operands where they are.
  int column_warps = 2;
  int query_slices = 1;   // of dQ's columns, which are computed one after another
  int stages = 2;         // of Q and dO; with 1, the next arrive under the product dQ
  int ctas_per_sm = 1;    // resident CTAs: what one waits for passes under the products of the other
  bool ordered = false;   // the sums of dQ are added to in the order of the keys: the same bits every time
  bool captures = false;  // the gradients of captures: of its kernel alone
  bool debug = false;     // shared memory starts as NaN

  bool operator==(const Config&) const = default;
};

/// Bytes of shared memory where diagonals of captures' gradients are summed, 16 keys of a warp at a time.
constexpr int diagonal_bytes(const Config& c) {
  return c.captures ? c.warps * 4 * score::diagonal_floats(c.part_m) : 0;
}
constexpr int threads_per_block(const Config& c) { return c.warps * kWarpSize; }
/// 16-bit columns of a row of as many elements: what tiles and copies count.
constexpr int halves(const Config& c, int columns) { return columns * halves_of(c.rule.element); }
constexpr int key_groups(const Config& c) { return c.warps / c.column_warps; }
/// Keys of a CTA.
constexpr int block_n(const Config& c) { return key_groups(c) * c.rows_per_warp; }
constexpr int fragments(const Config& c) { return c.rows_per_warp / kFragmentRows; }
/// Of the warps that share keys, those that compute scores: all, unless there are fewer parts of queries.
constexpr int score_warps(const Config& c) {
  const int parts = c.block_m / c.part_m;
  return parts < c.column_warps ? parts : c.column_warps;
}
/// Whether the warp of that number, of those that share keys, is one of them.
constexpr bool computes_scores(const Config& c, int column_warp) {
  return score_warps(c) == c.column_warps || column_warp < score_warps(c);
}
/// Queries of a step whose scores a warp computes, and in how many parts.
constexpr int warp_queries(const Config& c) { return c.block_m / score_warps(c); }
constexpr int warp_parts(const Config& c) { return warp_queries(c) / c.part_m; }
/// Columns of dK and dV that a warp holds.
constexpr int key_columns(const Config& c) { return c.head_dim / c.column_warps; }
constexpr int value_columns(const Config& c) { return c.head_dim_v / c.column_warps; }

/// How the warps share a slice of dQ of a step: each has `rows` queries and `columns` columns.
struct QueryTile {
  int rows, columns;
};

/// How the warps share `head_dim` columns of dQ of a step of block_m queries: two fragments of rows where the columns
/// can be divided among the others, as each operand K that is read then serves two products.
constexpr QueryTile query_tile(int block_m, int head_dim, int warps, int most_rows) {
  for (int rows = most_rows; rows >= kFragmentRows; rows -= kFragmentRows) {
    const int row_warps = block_m / rows;
    if (row_warps == 0 || block_m % rows != 0 || warps % row_warps != 0) continue;
    const int columns = head_dim / (warps / row_warps);
    if (columns % kStep == 0 && columns * (warps / row_warps) == head_dim) return {rows, columns};
  }
  return {0, 0};
}
constexpr QueryTile query_tile(const Config& c) {
  return query_tile(c.block_m, c.head_dim / c.query_slices, c.warps,
                    c.rule.element == Element::fp32 ? kFragmentRows : 2 * kFragmentRows);
}

/// Whether the sizes agree with each other.
constexpr bool is_consistent(const Config& c) {
  const bool shares = c.warps % c.column_warps == 0 && c.block_m % (score_warps(c) * c.part_m) == 0 &&
                      key_columns(c) % kStep == 0 && value_columns(c) % kStep == 0;
  const bool steps = c.part_m % kStep == 0 && (c.part_m < kDropoutColumns || c.part_m % kDropoutColumns == 0);
  // Of float32 warps read 32 columns of Q, K, dO and of what lies in dS's tile at a time.
  const bool floats = c.rule.element != Element::fp32 ||
                      (fragments(c) == 1 && query_tile(c).columns % 32 == 0 && key_columns(c) % 32 == 0 &&
                       value_columns(c) % 32 == 0 && block_n(c) % 32 == 0);
  const bool blocks = c.rule.block_mask % c.block_m == 0 && c.rule.block_mask % block_n(c) == 0;
  return shares && steps && floats && blocks && c.head_dim % c.query_slices == 0 && query_tile(c).rows > 0;
}

}  // namespace strobe::sm80::backward
