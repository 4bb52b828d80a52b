// Where each piece of a task's scratch memory lies. The plan sizes workspace from these layouts and the kernels carve
// it by them, so the bytes are written once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "call/arithmetic.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu {

/// Hands out consecutive, cache-line aligned pieces and counts the bytes.
class ScratchLayout {
 public:
  template <class T>
  std::size_t take(std::int64_t elements) {
    const std::size_t offset = bytes_;
    bytes_ += round_up(static_cast<std::size_t>(elements) * sizeof(T), 64);
    return offset;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

// A cache line between strips, so that they do not share cache sets.
inline constexpr std::int64_t kStripPadding = 16;

/// Floats that packing panels of rows takes besides: as many rows as a vector has lanes, in whole vectors.
constexpr std::int64_t pack_buffer(std::int64_t columns, const KernelTraits& traits) {
  return traits.lanes * round_up(columns, traits.wide_panel);
}

/// Words of 32 keys, at multiples of 32, that hold any `keys` in a row.
constexpr std::int64_t keep_words(std::int64_t keys) { return ceil_div(keys + 31, 32); }

/// Byte offsets of one worker's forward scratch; names as in forward-inl.h.
struct ForwardScratch {
  std::size_t keys, values, queries, output, scores, row_max, row_sum, rescale, visible_begin, visible_end, row, bias,
      bytes;

  ForwardScratch(std::int64_t head_dim, std::int64_t head_dim_v, Tiles tiles, const KernelTraits& traits) {
    const std::int64_t d = round_up(head_dim, traits.strip);
    const std::int64_t dv = round_up(head_dim_v, traits.strip);
    const std::int64_t m = tiles.block_m / tiles.part_m * round_up(tiles.part_m, traits.panel);
    const std::int64_t n = round_up(tiles.block_n, traits.row_multiple);
    ScratchLayout layout;
    keys = layout.take<float>((d * traits.strip + kStripPadding) * n / traits.strip);
    values = layout.take<float>((n * traits.strip + kStripPadding) * dv / traits.strip);
    queries = layout.take<float>(m * d);
    output = layout.take<float>(m * dv);
    scores = layout.take<float>(n * traits.panel);
    row_max = layout.take<float>(m);
    row_sum = layout.take<float>(m);
    rescale = layout.take<float>(traits.panel);
    visible_begin = layout.take<std::int64_t>(m);
    visible_end = layout.take<std::int64_t>(m);
    row = layout.take<float>(pack_buffer(std::max({d, dv, n}), traits));
    bias = layout.take<float>(n * traits.panel);
    bytes = layout.bytes();
  }
};

/// Byte offsets of one worker's backward scratch; names as in backward-inl.h.
struct BackwardScratch {
  std::size_t keys, values, wide_keys, dk, dv, queries, d_o, scores, d_probabilities, d_scores, lse, row_begin, row_end,
      row, terms, kept, bytes;

  BackwardScratch(std::int64_t head_dim, std::int64_t head_dim_v, Tiles tiles, const KernelTraits& traits) {
    const std::int64_t d = round_up(head_dim, traits.strip);
    const std::int64_t dv_columns = round_up(head_dim_v, traits.strip);
    const std::int64_t m = round_up(tiles.block_m, traits.row_multiple);
    const std::int64_t n = round_up(tiles.block_n, traits.panel);
    ScratchLayout layout;
    keys = layout.take<float>(n * d);
    values = layout.take<float>(n * dv_columns);
    wide_keys = layout.take<float>(n * round_up(head_dim, traits.wide_panel));
    dk = layout.take<float>(n * d);
    dv = layout.take<float>(n * dv_columns);
    queries = layout.take<float>((d * traits.strip + kStripPadding) * m / traits.strip);
    d_o = layout.take<float>((dv_columns * traits.strip + kStripPadding) * m / traits.strip);
    scores = layout.take<float>(m * traits.panel);
    d_probabilities = layout.take<float>(m * traits.panel);
    d_scores = layout.take<float>(m * n);
    lse = layout.take<float>(m);
    row_begin = layout.take<std::int64_t>(n);
    row_end = layout.take<std::int64_t>(n);
    row = layout.take<float>(pack_buffer(std::max(head_dim, head_dim_v), traits));
    terms = layout.take<float>(m * traits.panel);
    kept = layout.take<std::uint32_t>(m * keep_words(tiles.block_n));
    bytes = layout.bytes();
  }
};

}  // namespace strobe::cpu
