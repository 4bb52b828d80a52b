// SPDX-License-Identifier: Apache-2.0
// Copies rows of the caller's tensors into the micro-kernels' layouts, converting to float32, and results back.
#if defined(STROBE_CPU_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_PACK_INL_H_
#undef STROBE_CPU_PACK_INL_H_
#else
#define STROBE_CPU_PACK_INL_H_
#endif

#include <algorithm>

#include "cpu/kernels/scratch.h"
#include "cpu/kernels/task.h"
#include "cpu/kernels/vector-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Some rows of a tensor, of which the first `columns` elements are read.
struct Source {
  const ConstRows& rows;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t columns = 0;

  template <class T>
  const T* row(std::int64_t index) const {
    return static_cast<const T*>(rows.data) + rows.offset(first + index);
  }
};

/// Heads lie side by side in memory, so consecutive rows of one head can be pages apart, where no hardware prefetcher
/// follows: while a row is packed, one this far ahead is fetched.
inline constexpr std::int64_t kPrefetchRows = 8;

template <class T>
HWY_INLINE void prefetch_row(const Source& from, std::int64_t row) {
  if (row >= from.count) return;
  const char* data = reinterpret_cast<const char*>(from.row<T>(row));
  for (std::size_t byte = 0; byte < static_cast<std::size_t>(from.columns) * sizeof(T); byte += 64) {
    hwy::Prefetch(data + byte);
  }
}

/// Fetches rows [first, last) of a tensor, `columns` elements of each, before anything reads or writes them: a short
/// sequence has no rows before them whose work could hide the wait.
template <class Pointer>
HWY_INLINE void prefetch_rows(DType dtype, const GroupRows<Pointer>& rows, std::int64_t first, std::int64_t last,
                              std::int64_t columns) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t row = first; row < last; ++row) {
    const char* data = static_cast<const char*>(rows.data) + rows.offset(row) * size;
    for (std::int64_t byte = 0; byte < columns * size; byte += 64) hwy::Prefetch(data + byte);
  }
}

/// The first rows of what is packed next.
HWY_INLINE void prefetch_first_rows(DType dtype, const ConstRows& rows, std::int64_t first, std::int64_t count,
                                    std::int64_t columns) {
  prefetch_rows(dtype, rows, first, first + std::min(count, kPrefetchRows), columns);
}

template <class T>
HWY_INLINE void load_row(const T* HWY_RESTRICT from, std::int64_t count, float* HWY_RESTRICT to) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(load(Floats(), from + i), Floats(), to + i);
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

/// A left operand: element (row, column) lies at (row / kStrip) * group_stride + (column / kStrip) * strip_stride +
/// (row % kStrip) * kStrip + column % kStrip.
struct PackedLayout {
  std::int64_t group_stride;
  std::int64_t strip_stride;
};

inline constexpr std::int64_t kPackedTile = std::int64_t{kStrip} * kStrip;

/// Tiles of the same rows adjacent: for products that run over columns. The odd cache line between groups keeps them
/// out of one another's cache sets where a product runs over rows.
constexpr PackedLayout rows_together(std::int64_t columns) {
  return {round_up(columns, kStrip) * kStrip + kStripPadding, kPackedTile};
}

/// Tiles of the same columns adjacent: for products that run over rows.
constexpr PackedLayout columns_together(std::int64_t rows) {
  return {kPackedTile, round_up(rows, kStrip) * kStrip + kStripPadding};
}

/// Packs into tiles `padded_rows` rows (a multiple of kStrip); rows and columns beyond the source are zero.
template <class T>
HWY_INLINE void pack_tiles_of(const Source& from, std::int64_t padded_rows, PackedLayout layout,
                              float* HWY_RESTRICT to) {
  const hn::CappedTag<float, kStrip> d;
  constexpr std::int64_t kStep = HWY_MIN(kStrip, kLanes);
  const std::int64_t whole = round_down(from.columns, kStrip);
  for (std::int64_t row = 0; row < padded_rows; ++row) {
    prefetch_row<T>(from, row + kPrefetchRows);
    float* HWY_RESTRICT out = to + row / kStrip * layout.group_stride + row % kStrip * kStrip;
    if (row >= from.count) {
      for (std::int64_t c = 0; c < from.columns; c += kStrip, out += layout.strip_stride)
        std::fill_n(out, kStrip, 0.0F);
      continue;
    }
    const T* HWY_RESTRICT in = from.row<T>(row);
    for (std::int64_t c = 0; c < whole; c += kStrip, out += layout.strip_stride) {
      for (std::int64_t i = 0; i < kStrip; i += kStep) hn::StoreU(load(d, in + c + i), d, out + i);
    }
    if (whole == from.columns) continue;
    std::fill_n(out, kStrip, 0.0F);
    for (std::int64_t c = whole; c < from.columns; ++c) out[c - whole] = to_float(in[c]);
  }
}

HWY_INLINE void pack_tiles(DType dtype, const Source& from, std::int64_t padded_rows, PackedLayout layout, float* to) {
  switch (dtype) {
    case DType::float16: return pack_tiles_of<float16>(from, padded_rows, layout, to);
    case DType::bfloat16: return pack_tiles_of<bfloat16>(from, padded_rows, layout, to);
    case DType::int8: return pack_tiles_of<std::int8_t>(from, padded_rows, layout, to);
    case DType::float8_e4m3: return pack_tiles_of<float8_e4m3>(from, padded_rows, layout, to);
    default: return pack_tiles_of<float>(from, padded_rows, layout, to);
  }
}

// Rows that are transposed together: a lane each. Vectors shorter than a block of four have one.
inline constexpr std::int64_t kTransposedRows = kLanes % 4 == 0 ? kLanes : 1;

#if HWY_TARGET != HWY_SCALAR
/// Four elements from `column` on of every fourth of kRows rows, a 128-bit block each.
template <std::int64_t kRows, class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const float* const* rows, std::int64_t column) {
  if constexpr (kRows == 4) {
    return hn::LoadU(d, rows[0] + column);
  } else {
    constexpr std::int64_t kHalf = kRows / 2;
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks<kHalf>(half, rows + kHalf, column), load_blocks<kHalf>(half, rows, column));
  }
}

template <std::int64_t kRows, class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> blocks, float* rows, std::int64_t row_stride) {
  if constexpr (kRows == 4) {
    hn::StoreU(blocks, d, rows);
  } else {
    constexpr std::int64_t kHalf = kRows / 2;
    const hn::Half<D> half;
    store_blocks<kHalf>(half, hn::LowerHalf(half, blocks), rows, row_stride);
    store_blocks<kHalf>(half, hn::UpperHalf(half, blocks), rows + kHalf * row_stride, row_stride);
  }
}

/// Transposes the 4 x 4 elements that each 128-bit block of four vectors holds.
HWY_INLINE void transpose_blocks(FixedVec (&v)[4]) {
  const Floats d;
  const hn::Repartition<std::uint64_t, Floats> pairs;
  const Vec v0 = v[0];
  const Vec v1 = v[1];
  const Vec v2 = v[2];
  const Vec v3 = v[3];
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, v0, v1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, v2, v3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, v0, v1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, v2, v3));
  v[0] = hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23));
  v[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23));
  v[2] = hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23));
  v[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23));
}
#endif

/// to[column * stride + i] = rows[i][column] for kTransposedRows rows; columns in fours, or one by one of a single row.
HWY_INLINE void transpose_rows(const float* const (&rows)[kTransposedRows], std::int64_t columns, std::int64_t stride,
                               float* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t c = 0; c < columns; ++c) to[c * stride] = rows[0][c];
#else
  const Floats d;
  for (std::int64_t c = 0; c < columns; c += 4) {
    FixedVec v[4];
    for (int i = 0; i < 4; ++i) v[i] = load_blocks<kLanes>(d, rows + i, c);
    transpose_blocks(v);
    for (int i = 0; i < 4; ++i) hn::StoreU(v[i], d, to + (c + i) * stride);
  }
#endif
}

/// rows[i * row_stride + column] = from[column * stride + i] for kTransposedRows rows; columns likewise.
HWY_INLINE void transpose_columns(const float* HWY_RESTRICT from, std::int64_t stride, std::int64_t columns,
                                  [[maybe_unused]] std::int64_t row_stride, float* HWY_RESTRICT rows) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t c = 0; c < columns; ++c) rows[c] = from[c * stride];
#else
  const Floats d;
  for (std::int64_t c = 0; c < columns; c += 4) {
    FixedVec v[4];
    for (int i = 0; i < 4; ++i) v[i] = hn::LoadU(d, from + (c + i) * stride);
    transpose_blocks(v);
    for (int i = 0; i < 4; ++i) store_blocks<kLanes>(d, v[i], rows + i * row_stride + c, row_stride);
  }
#endif
}

/// One row of the source times `factor`, zero from its columns to `padded_columns`; all zero for a row that it lacks.
template <class T>
HWY_INLINE void load_source_row(const Source& from, std::int64_t row, std::int64_t padded_columns, float factor,
                                float* HWY_RESTRICT to) {
  prefetch_row<T>(from, row + kPrefetchRows);
  const std::int64_t columns = row < from.count ? from.columns : 0;
  if (columns > 0) load_row(from.row<T>(row), columns, to);
  if (factor != 1.0F) {
    for (std::int64_t c = 0; c < columns; ++c) to[c] *= factor;
  }
  std::fill(to + columns, to + padded_columns, 0.0F);
}

/// Right-operand layout: panels of kWidth rows, transposed, so that rows lie across the lanes:
/// element (row, column) at (row / kWidth) * padded_columns * kWidth + column * kWidth + row % kWidth. Every element is
/// multiplied by `factor`; columns beyond the source, and rows as far as `padded_rows` (whole vectors), are zero.
/// `row_buffer` holds pack_buffer() floats. A panel has `panel_columns`, of which these may be some.
template <std::int64_t kWidth, class T>
HWY_INLINE void pack_panels_of(const Source& from, std::int64_t padded_rows, std::int64_t padded_columns, float factor,
                               float* HWY_RESTRICT row_buffer, float* HWY_RESTRICT to, std::int64_t panel_columns) {
  const std::int64_t stride = round_up(padded_columns, kLanes);
  // Rows that need nothing done to them are transposed from where they lie.
  const bool as_it_is = std::is_same_v<T, float> && factor == 1.0F && from.columns == stride;
  for (std::int64_t row = 0; row < padded_rows; row += kTransposedRows) {
    const float* together[kTransposedRows];
    for (std::int64_t i = 0; i < kTransposedRows; ++i) {
      float* own = row_buffer + i * stride;
      together[i] = own;
      if (as_it_is && row + i < from.count) {
        prefetch_row<T>(from, row + i + kPrefetchRows);
        together[i] = from.row<float>(row + i);
      } else {
        load_source_row<T>(from, row + i, stride, factor, own);
      }
    }
    transpose_rows(together, padded_columns, kWidth, to + row / kWidth * panel_columns * kWidth + row % kWidth);
  }
}

template <std::int64_t kWidth = kPanel>
HWY_INLINE void pack_panels(DType dtype, const Source& from, std::int64_t padded_rows, std::int64_t padded_columns,
                            float factor, float* row_buffer, float* to, std::int64_t panel_columns) {
  switch (dtype) {
    case DType::float16:
      return pack_panels_of<kWidth, float16>(from, padded_rows, padded_columns, factor, row_buffer, to, panel_columns);
    case DType::bfloat16:
      return pack_panels_of<kWidth, bfloat16>(from, padded_rows, padded_columns, factor, row_buffer, to, panel_columns);
    case DType::int8:
      return pack_panels_of<kWidth, std::int8_t>(from, padded_rows, padded_columns, factor, row_buffer, to,
                                                 panel_columns);
    case DType::float8_e4m3:
      return pack_panels_of<kWidth, float8_e4m3>(from, padded_rows, padded_columns, factor, row_buffer, to,
                                                 panel_columns);
    default:
      return pack_panels_of<kWidth, float>(from, padded_rows, padded_columns, factor, row_buffer, to, panel_columns);
  }
}

/// Panels of these columns alone.
template <std::int64_t kWidth = kPanel>
HWY_INLINE void pack_panels(DType dtype, const Source& from, std::int64_t padded_rows, std::int64_t padded_columns,
                            float factor, float* row_buffer, float* to) {
  pack_panels<kWidth>(dtype, from, padded_rows, padded_columns, factor, row_buffer, to, padded_columns);
}

/// Right-operand layout with columns across the lanes: element (row, column) at
/// (column / kWidePanel) * padded_rows * kWidePanel + row * kWidePanel + column % kWidePanel; zero beyond the source.
template <class T>
HWY_INLINE void pack_wide_panels_of(const Source& from, std::int64_t padded_rows, float* HWY_RESTRICT row_buffer,
                                    float* HWY_RESTRICT to) {
  const std::int64_t columns = round_up(from.columns, kWidePanel);
  std::fill(row_buffer, row_buffer + columns, 0.0F);
  for (std::int64_t row = 0; row < padded_rows; ++row) {
    if (row < from.count) load_row(from.row<T>(row), from.columns, row_buffer);
    if (row == from.count) std::fill(row_buffer, row_buffer + from.columns, 0.0F);
    for (std::int64_t c = 0; c < columns; c += kWidePanel) {
      std::copy_n(row_buffer + c, kWidePanel, to + c * padded_rows + row * kWidePanel);
    }
  }
}

HWY_INLINE void pack_wide_panels(DType dtype, const Source& from, std::int64_t padded_rows, float* row_buffer,
                                 float* to) {
  switch (dtype) {
    case DType::float16: return pack_wide_panels_of<float16>(from, padded_rows, row_buffer, to);
    case DType::bfloat16: return pack_wide_panels_of<bfloat16>(from, padded_rows, row_buffer, to);
    default: return pack_wide_panels_of<float>(from, padded_rows, row_buffer, to);
  }
}

/// Writes `columns` float32, times `factor`, of row `row` to the caller's tensor.
HWY_INLINE void store_result(DType dtype, const MutableRows& rows, std::int64_t row, const float* from,
                             std::int64_t columns, float factor = 1.0F) {
  const std::int64_t offset = rows.offset(row);
  switch (dtype) {
    case DType::float16: return store_row(from, factor, static_cast<float16*>(rows.data) + offset, columns);
    case DType::bfloat16: return store_row(from, factor, static_cast<bfloat16*>(rows.data) + offset, columns);
    default: return store_row(from, factor, static_cast<float*>(rows.data) + offset, columns);
  }
}

/// Whether whole vectors of float32 hold neither NaN nor infinity.
HWY_INLINE bool all_finite(const float* from, std::int64_t count) {
  const Floats d;
  for (std::int64_t i = 0; i < count; i += kLanes) {
    if (!hn::AllTrue(d, hn::IsFinite(hn::LoadU(d, from + i)))) return false;
  }
  return true;
}

/// The same of a packed left operand, tile by tile: the gaps of its layout hold anything.
HWY_INLINE bool all_finite(const float* from, PackedLayout layout, std::int64_t padded_rows, std::int64_t columns) {
  for (std::int64_t row = 0; row < padded_rows; row += kStrip, from += layout.group_stride) {
    const float* tile = from;
    for (std::int64_t c = 0; c < columns; c += kStrip, tile += layout.strip_stride) {
      if (!all_finite(tile, kPackedTile)) return false;
    }
  }
  return true;
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_PACK_INL_H_
