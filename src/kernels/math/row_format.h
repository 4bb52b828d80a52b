// SPDX-License-Identifier: Apache-2.0
// What a row of a cache holds, as kernels are compiled for it: the value of strobe/row_format.h as a structural type.
// Plain constexpr C++ without std headers, shared by host and device.
#pragma once

namespace strobe {

/// As RowElement.
enum class StoredElement : unsigned char { float32, bfloat16, float16, float8_e4m3, int8, int4, float4_e2m1 };

/// As RowScale.
enum class StoredScale : unsigned char { none, float32, bfloat16, float8_e8m0, float32_power_of_two, float8_e4m3 };

/// As RowPart.
struct StoredPart {
  StoredElement element = StoredElement::bfloat16;
  int columns = 0;
  int offset = 0;
  StoredScale scale = StoredScale::none;
  int scale_columns = 0;
  int scale_offset = 0;  // or kScaleApart

  bool operator==(const StoredPart&) const = default;
};

/// The scale of a row is not in it: whoever finds the row reads the scale, too.
inline constexpr int kScaleApart = -1;

/// As RowFormat, without what of a row is V.
struct StoredFormat {
  StoredPart first, second, third, fourth;
  int part_count = 0;
  int row_bytes = 0;
  int tail_bytes = 0;
  int alignment = 1;

  bool operator==(const StoredFormat&) const = default;
};

inline constexpr int kMostStoredParts = 4;

/// Columns that kernels read at a time: no two of them lie in different parts or have different scales.
inline constexpr int kPieceColumns = 8;

constexpr StoredPart part_of(const StoredFormat& format, int index) {
  return index == 0 ? format.first : index == 1 ? format.second : index == 2 ? format.third : format.fourth;
}

/// Whether the rows are those of a cache in 8 bits, whose scales lie in a tensor of their own.
constexpr bool has_scales_apart(const StoredFormat& format) {
  return format.part_count == 1 && format.first.scale_offset == kScaleApart;
}

constexpr int columns_of(const StoredFormat& format) {
  return format.first.columns + format.second.columns + format.third.columns + format.fourth.columns;
}

/// The first column of a part.
constexpr int first_column(const StoredFormat& format, int index) {
  int first = 0;
  for (int before = 0; before < index; ++before) {
    first += part_of(format, before).columns;
  }
  return first;
}

constexpr int bits_of(StoredElement element) {
  switch (element) {
    case StoredElement::float32: return 32;
    case StoredElement::bfloat16:
    case StoredElement::float16: return 16;
    case StoredElement::float8_e4m3:
    case StoredElement::int8: return 8;
    default: return 4;
  }
}

constexpr int bytes_of(StoredScale scale) {
  switch (scale) {
    case StoredScale::none: return 0;
    case StoredScale::float8_e8m0:
    case StoredScale::float8_e4m3: return 1;
    case StoredScale::bfloat16: return 2;
    default: return 4;
  }
}

/// The bytes that the eight elements of a piece take.
constexpr int piece_bytes(StoredElement element) { return bits_of(element) * kPieceColumns / 8; }

/// Whether byte `offset` of a row lies behind the rows of its page.
constexpr bool in_tail(const StoredFormat& format, int offset) {
  return offset >= format.row_bytes - format.tail_bytes;
}

/// Byte `offset` counted from where the row's body, or its tail, begins.
constexpr int offset_in_section(const StoredFormat& format, int offset) {
  return in_tail(format, offset) ? offset - (format.row_bytes - format.tail_bytes) : offset;
}

/// The largest power of two up to 16 that divides a number.
constexpr int power_in(int number) {
  int power = 16;
  while (number % power != 0) {
    power /= 2;
  }
  return power;
}

/// What addresses at `step` bytes from each other, the first at byte `offset` of a row, are multiples of, up to 16.
/// Tails follow one another behind rows, so that they are as aligned as their length is.
constexpr int alignment_at(const StoredFormat& format, int offset, int step) {
  const int numbers[] = {format.alignment, offset_in_section(format, offset), step,
                         in_tail(format, offset) ? format.tail_bytes : 0};
  int alignment = 16;
  for (const int number : numbers) {
    alignment = power_in(number) < alignment ? power_in(number) : alignment;
  }
  return alignment;
}

}  // namespace strobe
