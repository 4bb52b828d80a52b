// SPDX-License-Identifier: Apache-2.0
// The memory in which a worker runs its tasks, one after another. Plans measure it by constructing it on no memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "call/arithmetic.h"
#include "cpu/kernels/arena.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu {

// A cache line between strips, so that they do not share cache sets.
inline constexpr std::int64_t kStripPadding = 16;

/// Floats that packing panels of rows takes besides: as many rows as a vector has lanes, in whole vectors.
constexpr std::int64_t pack_buffer(std::int64_t columns, const KernelTraits& traits) {
  return traits.lanes * round_up(columns, traits.wide_panel);
}

/// Words of 32 keys, at multiples of 32, that hold any `keys` in a row.
constexpr std::int64_t keep_words(std::int64_t keys) { return ceil_div(keys + 31, 32); }

/// Columns that scores are products over, as kernels hold them: q's and, behind them, qv's, in whole `multiple`s each.
constexpr std::int64_t score_columns(std::int64_t head_dim, std::int64_t qv_columns, std::int64_t multiple) {
  return round_up(head_dim, multiple) + round_up(qv_columns, multiple);
}

/// Bytes of a tile of K or V that is converted from 8 bits, in the widest dtype; `stored`: whether any is.
constexpr std::int64_t converted_bytes(bool stored, std::int64_t keys, std::int64_t head_dim, std::int64_t head_dim_v) {
  return stored ? keys * std::max(head_dim, head_dim_v) * static_cast<std::int64_t>(sizeof(float)) : 0;
}

/// Of forward-inl.h.
struct ForwardScratch {
  ForwardScratch(std::byte* memory, std::int64_t head_dim, std::int64_t head_dim_v, std::int64_t qv_columns,
                 bool stored, Tiles tiles, const KernelTraits& kernels)
      : traits(kernels),
        columns(score_columns(head_dim, qv_columns, traits.strip)),
        columns_v(round_up(head_dim_v, traits.strip)),
        tile_bytes(converted_bytes(stored, tiles.block_n, head_dim, head_dim_v)),
        m(tiles.block_m / tiles.part_m * round_up(tiles.part_m, traits.panel)),
        n(round_up(tiles.block_n, traits.row_multiple)),
        arena(memory) {}

  const KernelTraits traits;
  const std::int64_t columns;    // score_columns() in whole strips
  const std::int64_t columns_v;  // head_dim_v in whole strips
  const std::int64_t tile_bytes;
  const std::int64_t m;  // rows of a block, in whole panels
  const std::int64_t n;  // keys of a tile, padded
  Arena arena;

  float* const keys = arena.take<float>((columns * traits.strip + kStripPadding) * n / traits.strip);  // K tile, packed
  float* const values =
      arena.take<float>((n * traits.strip + kStripPadding) * columns_v / traits.strip);  // V tile, packed
  float* const queries = arena.take<float>(m, columns);                                  // Q^T (and qv^T), panels
  float* const output = arena.take<float>(m, columns_v);                                 // O^T unscaled, panels
  float* const scores = arena.take<float>(n, traits.panel);                              // S^T, then P^T, of one panel
  float* const row_max = arena.take<float>(m);                  // of scores, as the task's softmax has them
  float* const row_offset = arena.take<float>(m);               // of 8-bit operands: added to row_max's exponent
  float* const row_sum = arena.take<float>(m);                  // of exp2(exponent - row_max's)
  float* const rescale = arena.take<float>(traits.panel);       // of one panel
  bool* const summed = arena.take<bool>(m / traits.panel);      // whether anything has been added to a panel of output
  float* const block_factor = arena.take<float>(traits.panel);  // of one panel; 1 but for 8-bit operands
  float* const query_scales = arena.take<float>(m);
  float* const query_shifts = arena.take<float>(m);
  float* const key_scales = arena.take<float>(n);  // of a tile
  float* const value_scales = arena.take<float>(n);
  float* const reference_scales_log2 = arena.take<float>(n);
  std::int64_t* const visible_begin = arena.take<std::int64_t>(m);  // first visible key of each row
  std::int64_t* const visible_end = arena.take<std::int64_t>(m);    // one past the last
  float* const row =
      arena.take<float>(pack_buffer(std::max({columns, columns_v, n}), traits));  // rows on their way in or out
  float* const bias = arena.take<float>(n, traits.panel);                         // of one panel
  std::byte* const converted = arena.take<std::byte>(tile_bytes);                 // of K or V stored in 8 bits
};

/// Of jvp-inl.h: beside the forward's, which come first, what holds the tangents of its arrays.
struct JvpScratch {
  JvpScratch(std::byte* memory, std::int64_t head_dim, std::int64_t head_dim_v, Tiles tiles,
             const KernelTraits& kernels)
      : forward(memory, head_dim, head_dim_v, 0, false, tiles, kernels),
        arena(memory == nullptr ? nullptr : memory + forward.arena.bytes()) {}

  std::size_t bytes() const { return forward.arena.bytes() + arena.bytes(); }

  const ForwardScratch forward;
  Arena arena;

  float* const keys =
      arena.take<float>((forward.columns * forward.traits.strip + kStripPadding) * forward.n / forward.traits.strip);
  float* const values =
      arena.take<float>((forward.n * forward.traits.strip + kStripPadding) * forward.columns_v / forward.traits.strip);
  float* const queries = arena.take<float>(forward.m, forward.columns);
  float* const output = arena.take<float>(forward.m, forward.columns_v);
  float* const scores = arena.take<float>(forward.n, forward.traits.panel);  // S'^T, then (P S')^T
  float* const row_sum = arena.take<float>(forward.m);                       // of P S'
  float* const row = arena.take<float>(pack_buffer(std::max(forward.columns, forward.columns_v), forward.traits));
};

/// Of row_normalizers-inl.h.
struct NormalizerScratch {
  NormalizerScratch(std::byte* memory, std::int64_t head_dim, std::int64_t qv_columns, const KernelTraits& traits)
      : columns(score_columns(head_dim, qv_columns, traits.lanes)), lanes(traits.lanes), arena(memory) {}

  static constexpr std::int64_t kRows = 4;      // of queries together, at most
  static constexpr std::int64_t kRowKeys = 64;  // from one row's scores to the next's

  const std::int64_t columns;  // score_columns() in whole vectors
  const std::int64_t lanes;
  Arena arena;

  float* const queries = arena.take<float>(kRows, columns);
  float* const keys = arena.take<float>(lanes, columns);
  float* const scores = arena.take<float>(kRows, kRowKeys);
};

/// Of backward-inl.h.
struct BackwardScratch {
  BackwardScratch(std::byte* memory, std::int64_t head_dim, std::int64_t head_dim_v, std::int64_t qv_columns,
                  bool has_text, Tiles tiles, const KernelTraits& kernels)
      : traits(kernels),
        columns(score_columns(head_dim, qv_columns, traits.strip)),
        columns_v(round_up(head_dim_v, traits.strip)),
        wide_columns(score_columns(head_dim, qv_columns, traits.wide_panel)),
        widest(std::max(head_dim, head_dim_v)),
        m(round_up(tiles.block_m, traits.row_multiple)),
        n(round_up(tiles.block_n, traits.panel)),
        words(keep_words(tiles.block_n)),
        text_rows(has_text ? m : 0),
        arena(memory) {}

  const KernelTraits traits;
  const std::int64_t columns;       // score_columns() in whole strips: of K and V where there is qv, likewise of sums
  const std::int64_t columns_v;     // head_dim_v in whole strips
  const std::int64_t wide_columns;  // score_columns() in whole wide panels
  const std::int64_t widest;        // of both
  const std::int64_t m;             // rows of a block, padded
  const std::int64_t n;             // keys of a block, in whole panels
  const std::int64_t words;         // of kept keys in a row
  const std::int64_t text_rows;
  Arena arena;

  float* const keys = arena.take<float>(n, columns);            // K^T, panels
  float* const values = arena.take<float>(n, columns_v);        // V^T, panels
  float* const wide_keys = arena.take<float>(n, wide_columns);  // K, wide panels
  float* const dk = arena.take<float>(n, columns);              // dK^T sums, panels
  float* const dv = arena.take<float>(n, columns_v);            // dV^T sums, panels
  float* const queries = arena.take<float>(Checked(m) * (columns * traits.strip + kStripPadding) /
                                           traits.strip);  // Q of the block, packed
  float* const d_o =
      arena.take<float>(Checked(m) * (columns_v * traits.strip + kStripPadding) / traits.strip);  // dO likewise
  float* const scores = arena.take<float>(m, traits.panel);           // S, then P, of one panel
  float* const d_probabilities = arena.take<float>(m, traits.panel);  // dP of one panel
  float* const d_scores = arena.take<float>(m, n);                    // dS of the block, panels
  std::int64_t* const row_begin = arena.take<std::int64_t>(n);        // first row that sees each key
  std::int64_t* const row_end = arena.take<std::int64_t>(n);          // one past the last
  float* const row = arena.take<float>(pack_buffer(widest, traits));  // rows on their way in or out
  float* const terms = arena.take<float>(m, traits.panel);          // of one panel; then dS before the softcap's slope
  std::uint32_t* const kept = arena.take<std::uint32_t>(m, words);  // of dropout: KeptKeys
  // Of one panel where a text makes the scores, else empty.
  float* const text_scores = arena.take<float>(text_rows, traits.panel);
  float* const text_slopes = arena.take<float>(text_rows, traits.panel);
  float* const given_scores = arena.take<float>(text_rows, traits.panel);  // that the text is given
  float* const d_text = arena.take<float>(text_rows, traits.panel);        // gradients of text_scores
};

}  // namespace strobe::cpu
