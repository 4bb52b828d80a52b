// SPDX-License-Identifier: Apache-2.0
// Rows of the caller's tensors into tiles. A tile is 1 KiB, seen as 16 x 16 pairs of bfloat16; transposing its pairs
// turns a left operand into a right one of the transposed matrix:
//
//   rows                 left operand M:     16 rows of M, 32 columns side by side
//   rows, transposed     right operand M^T:  pairs of M's columns down, 16 rows of M across
//   row pairs            right operand M:    pairs of M's rows down, 16 columns across
//   pairs, transposed    left operand M^T:   16 columns of M down, 32 rows of M side by side
#if defined(STROBE_CPU_BFLOAT16_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_PACK_INL_H_
#undef STROBE_CPU_BFLOAT16_PACK_INL_H_
#else
#define STROBE_CPU_BFLOAT16_PACK_INL_H_
#endif

#include <cstring>

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/scratch.h"
#include "cpu/kernels/pack-inl.h"

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Rows [row, row + 16) and columns [column, column + 32) of `from`, zero beyond it.
HWY_INLINE void copy_tile(const Source& from, std::int64_t row, std::int64_t column, bfloat16* HWY_RESTRICT to) {
  const std::int64_t columns = std::clamp<std::int64_t>(from.columns - column, 0, bf16::kTileDepth);
  for (std::int64_t r = row; r < row + bf16::kTileRows; ++r, to += bf16::kTileDepth) {
    if (r < from.count && columns == bf16::kTileDepth) {
      std::memcpy(to, from.row<bfloat16>(r) + column, bf16::kTileDepth * sizeof(bfloat16));
      continue;
    }
    std::fill_n(to, bf16::kTileDepth, bfloat16{});
    if (r < from.count && columns > 0) {
      std::memcpy(to, from.row<bfloat16>(r) + column, static_cast<std::size_t>(columns) * sizeof(bfloat16));
    }
  }
}

/// Rows [row, row + 32) and columns [column, column + 16) of `from` as pairs of rows, zero beyond it.
HWY_INLINE void interleave_tile(const Source& from, std::int64_t row, std::int64_t column, bfloat16* HWY_RESTRICT to) {
  const hn::RebindToUnsigned<Floats> wide;
  const hn::Rebind<std::uint16_t, Floats> half;
  const std::int64_t columns = std::clamp<std::int64_t>(from.columns - column, 0, bf16::kTileRows);
  HWY_ALIGN std::uint16_t buffer[2][bf16::kTileRows] = {};
  for (std::int64_t r = row; r < row + bf16::kTileDepth; r += 2, to += bf16::kTileDepth) {
    const std::uint16_t* rows[2];
    for (std::int64_t i = 0; i < 2; ++i) {
      rows[i] = buffer[i];
      if (r + i >= from.count) {
        std::memset(buffer[i], 0, sizeof(buffer[i]));
      } else if (columns == bf16::kTileRows) {
        rows[i] = reinterpret_cast<const std::uint16_t*>(from.row<bfloat16>(r + i) + column);
      } else if (columns > 0) {
        std::memcpy(buffer[i], from.row<bfloat16>(r + i) + column, static_cast<std::size_t>(columns) * 2);
      }
    }
    for (std::int64_t c = 0; c < bf16::kTileRows; c += kLanes) {
      const auto even = hn::PromoteTo(wide, hn::LoadU(half, rows[0] + c));
      const auto odd = hn::PromoteTo(wide, hn::LoadU(half, rows[1] + c));
      hn::StoreU(hn::Or(even, hn::ShiftLeft<16>(odd)), wide, reinterpret_cast<std::uint32_t*>(to) + c);
    }
  }
}

/// All tiles of `rows` x `columns` elements of `from` (multiples of kBlock), in groups of 16 rows, along the columns. A
/// group has `group_columns`, of which these may be some.
template <class Unit, bool kTransposed>
HWY_INLINE void pack_rows(const Source& from, std::int64_t rows, std::int64_t columns, bfloat16* HWY_RESTRICT to,
                          std::int64_t group_columns) {
  for (std::int64_t row = 0; row < rows; row += bf16::kTileRows) {
    for (std::int64_t r = row + bf16::kTileRows; r < row + 2 * bf16::kTileRows; ++r) prefetch_row<bfloat16>(from, r);
    bfloat16* tile = to + row * group_columns;
    for (std::int64_t column = 0; column < columns; column += bf16::kTileDepth, tile += bf16::kTileElements) {
      copy_tile(from, row, column, tile);
      if constexpr (kTransposed) Unit::transpose(tile);
    }
  }
}

/// Groups of these columns alone.
template <class Unit, bool kTransposed>
HWY_INLINE void pack_rows(const Source& from, std::int64_t rows, std::int64_t columns, bfloat16* HWY_RESTRICT to) {
  pack_rows<Unit, kTransposed>(from, rows, columns, to, columns);
}

/// Packs pairs of rows in groups of 16 columns, along the rows.
template <class Unit, bool kTransposed>
HWY_INLINE void pack_row_pairs(const Source& from, std::int64_t rows, std::int64_t columns, bfloat16* HWY_RESTRICT to) {
  for (std::int64_t row = 0; row < rows; row += bf16::kTileDepth) {
    for (std::int64_t r = row + bf16::kTileDepth; r < row + 2 * bf16::kTileDepth; ++r) prefetch_row<bfloat16>(from, r);
    for (std::int64_t column = 0; column < columns; column += bf16::kTileRows) {
      bfloat16* tile = to + column * rows + row * bf16::kTileRows;
      interleave_tile(from, row, column, tile);
      if constexpr (kTransposed) Unit::transpose(tile);
    }
  }
}

/// Some rows of a bfloat16 result, of which `columns` elements are written.
struct OutputRows {
  const MutableRows& rows;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t columns = 0;

  bfloat16* row(std::int64_t index) const { return static_cast<bfloat16*>(rows.data) + rows.offset(first + index); }
};

/// Panels of kBlock rows of float32, transposed ([panel][padded_columns][kBlock]), into rows of the caller's tensor;
/// row i is multiplied by factors[i].
template <class Unit>
HWY_INLINE void store_transposed(const float* HWY_RESTRICT panels, std::int64_t padded_columns,
                                 const float* HWY_RESTRICT factors, const OutputRows& to) {
  const Floats d;
  HWY_ALIGN float tile[bf16::kTileRows * bf16::kTileRows];
  HWY_ALIGN bfloat16 tail[bf16::kTileRows];
  for (std::int64_t row = 0; row < to.count; row += bf16::kTileRows) {
    const std::int64_t rows = std::min(bf16::kTileRows, to.count - row);
    const float* panel = panels + round_down(row, bf16::kBlock) * padded_columns + row % bf16::kBlock;
    for (std::int64_t column = 0; column < to.columns; column += bf16::kTileRows) {
      const std::int64_t columns = std::min(bf16::kTileRows, to.columns - column);
      for (std::int64_t c = 0; c < bf16::kTileRows; ++c) {
        std::memcpy(tile + c * bf16::kTileRows, panel + (column + c) * bf16::kBlock, bf16::kTileRows * sizeof(float));
      }
      Unit::transpose(tile);
      for (std::int64_t r = 0; r < rows; ++r) {
        const Vec factor = hn::Set(d, factors[row + r]);
        bfloat16* result = columns == bf16::kTileRows ? to.row(row + r) + column : tail;
        for (std::int64_t c = 0; c < bf16::kTileRows; c += kLanes) {
          Unit::narrow(hn::Mul(hn::Load(d, tile + r * bf16::kTileRows + c), factor), result + c);
        }
        if (columns < bf16::kTileRows) {
          std::memcpy(to.row(row + r) + column, tail, static_cast<std::size_t>(columns) * sizeof(bfloat16));
        }
      }
    }
  }
}

/// Exact for the factors -1, 0 and 1.
inline void multiply_by(bfloat16* HWY_RESTRICT data, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; ++i) data[i] = to_bfloat16(to_float(data[i]) * factor);
}

/// Whether no element is NaN or infinite.
inline bool all_finite(const bfloat16* data, std::int64_t count) {
  constexpr std::uint16_t kExponent = 0x7F80;
  const auto* bits = reinterpret_cast<const std::uint16_t*>(data);
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) finite &= (bits[i] & kExponent) != kExponent;
  return finite;
}

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();

#endif  // STROBE_CPU_BFLOAT16_PACK_INL_H_
