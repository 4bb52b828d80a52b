// SPDX-License-Identifier: Apache-2.0
// Eight columns of a row in any format: loaded as they are stored, then converted. What they hold is the element times
// its scale, one product rounded to float32 and then to the element type, as decode_rows() has it.
//
// That is bfloat16 or float16, whichever Q is. bfloat16 has the exponents of float32, so that no product overflows, and
// eight bits: e4m3, e2m1, int4 and int8 times a power of two are exact. In float16 what is larger than 65,504 becomes
// infinite, as it would in a float16 cache.
#pragma once

#include "kernels/math/stored_values.h"
#include "kernels/sequence/stored_cache.h"

namespace strobe {

#ifdef __CUDACC_RTC__

/// Words that a piece takes at most.
constexpr int piece_words(const StoredFormat& format) {
  int words = 1;
  for (int i = 0; i < format.part_count; ++i) {
    const int own = piece_bytes(part_of(format, i).element) / 4;
    words = own > words ? own : words;
  }
  return words;
}

/// A piece as it is stored.
template <StoredFormat F>
struct StoredPiece {
  unsigned words[piece_words(F)];
  unsigned scale;  // bits
};

/// Columns in which a kernel knows a piece to be when it is compiled.
struct ColumnRange {
  int first, count;
};

constexpr ColumnRange all_columns(const StoredFormat& format) { return {0, columns_of(format)}; }

/// Whether all of these columns are in the part.
constexpr bool has_columns(const StoredFormat& format, int part, const ColumnRange& range) {
  const int first = first_column(format, part);
  return range.first >= first && range.first + range.count <= first + part_of(format, part).columns;
}

/// visit.operator()<part>() for the part that has the column, which is in the range.
template <StoredFormat F, ColumnRange range, int part = 0, typename Visit>
__device__ __forceinline__ void visit_part(int column, const Visit& visit) {
  if constexpr (part + 1 < F.part_count && !has_columns(F, part, range)) {
    if (column >= first_column(F, part + 1)) {
      visit_part<F, range, part + 1>(column, visit);
      return;
    }
  }
  visit.template operator()<part>();
}

/// Reads `count` bytes that lie at a multiple of `alignment`, in as few loads as that allows.
template <int count, int alignment>
__device__ __forceinline__ void load_bytes(const unsigned char* from, unsigned* words) {
  if constexpr (alignment >= 16 && count >= 16) {
#pragma unroll
    for (int i = 0; i < count / 16; ++i) {
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(from) + i);
      words[4 * i] = four.x;
      words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z;
      words[4 * i + 3] = four.w;
    }
  } else if constexpr (alignment >= 8 && count >= 8) {
#pragma unroll
    for (int i = 0; i < count / 8; ++i) {
      const uint2 two = __ldg(reinterpret_cast<const uint2*>(from) + i);
      words[2 * i] = two.x;
      words[2 * i + 1] = two.y;
    }
  } else if constexpr (alignment >= 4) {
#pragma unroll
    for (int i = 0; i < count / 4; ++i) {
      words[i] = __ldg(reinterpret_cast<const unsigned*>(from) + i);
    }
  } else {
    constexpr int kEach = 4 / alignment;
#pragma unroll
    for (int i = 0; i < count / 4; ++i) {
      words[i] = 0U;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        unsigned bits;
        if constexpr (alignment == 2) {
          bits = __ldg(reinterpret_cast<const unsigned short*>(from) + i * kEach + j);
        } else {
          bits = __ldg(from + i * kEach + j);
        }
        words[i] |= bits << 8 * alignment * j;
      }
    }
  }
}

/// The bits of the scale of a part's column.
template <StoredFormat F, int part>
__device__ __forceinline__ unsigned load_scale(const StoredRow& row, int column) {
  constexpr StoredPart kPart = part_of(F, part);
  constexpr int kBytes = bytes_of(kPart.scale);
  return load_bits<kBytes>(stored_byte<F, kPart.scale_offset>(row) + column / kPart.scale_columns * kBytes);
}

/// Columns [column, column + 8) of a row.
template <StoredFormat F, ColumnRange range = all_columns(F)>
__device__ __forceinline__ StoredPiece<F> load_piece(const StoredRow& row, int column) {
  StoredPiece<F> piece{};
  visit_part<F, range>(column, [&]<int part>() {
    constexpr StoredPart kPart = part_of(F, part);
    constexpr int kBytes = piece_bytes(kPart.element);
    const int in_part = column - first_column(F, part);
    const unsigned char* const from = stored_byte<F, kPart.offset>(row) + in_part / kPieceColumns * kBytes;
    load_bytes<kBytes, alignment_at(F, kPart.offset, kBytes)>(from, piece.words);
    if constexpr (kPart.scale_offset == kScaleApart) {
      piece.scale = row.scale;
    } else if constexpr (kPart.scale != StoredScale::none) {
      piece.scale = load_scale<F, part>(row, in_part);
    }
  });
  return piece;
}

/// The elements of a part's piece, without their scale.
template <StoredElement stored>
__device__ __forceinline__ void elements_of(const unsigned* words, float (&elements)[kPieceColumns]) {
  if constexpr (bits_of(stored) == 4) {
#pragma unroll
    for (int i = 0; i < kPieceColumns; ++i) {
      elements[i] = value_of_bits<stored>(words[0] >> 4 * i & 15U);
    }
  } else if constexpr (bits_of(stored) == 8) {
    constexpr Element kElement = stored == StoredElement::int8 ? Element::int8 : Element::e4m3;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float four[4];
      to_floats<kElement>(words[half], four);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        elements[4 * half + i] = four[i];
      }
    }
  } else if constexpr (bits_of(stored) == 16) {
    constexpr Element kElement = stored == StoredElement::bfloat16 ? Element::bf16 : Element::fp16;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const float2 both = to_floats<kElement>(words[pair]);
      elements[2 * pair] = both.x;
      elements[2 * pair + 1] = both.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPieceColumns; ++i) {
      elements[i] = __uint_as_float(words[i]);
    }
  }
}

/// What columns [column, column + 8) hold, as float32.
template <StoredFormat F, ColumnRange range = all_columns(F)>
__device__ __forceinline__ void piece_values(const StoredPiece<F>& piece, int column, float (&values)[kPieceColumns]) {
  visit_part<F, range>(column, [&]<int part>() {
    constexpr StoredPart kPart = part_of(F, part);
    elements_of<kPart.element>(piece.words, values);
    if constexpr (kPart.scale != StoredScale::none) {
      const float scale = scale_value<kPart.scale>(piece.scale);
#pragma unroll
      for (int i = 0; i < kPieceColumns; ++i) {
        values[i] = __fmul_rn(values[i], scale);
      }
    }
  });
}

/// As 16-bit elements.
template <Element element, StoredFormat F, ColumnRange range = all_columns(F)>
__device__ __forceinline__ uint4 packed_piece(const StoredPiece<F>& piece, int column) {
  float x[kPieceColumns];
  piece_values<F, range>(piece, column, x);
  return {pack<element>(x[0], x[1]), pack<element>(x[2], x[3]), pack<element>(x[4], x[5]), pack<element>(x[6], x[7])};
}

#endif

}  // namespace strobe
