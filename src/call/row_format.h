// SPDX-License-Identifier: Apache-2.0
// The bytes of a row of a cache: where each lies, and what elements and scales are.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "strobe/float16.h"
#include "strobe/float8.h"
#include "strobe/row_format.h"

namespace strobe {

constexpr const char* name_of(RowElement element) {
  constexpr std::array kNames = {"float32", "bfloat16", "float16", "float8_e4m3", "int8", "int4", "float4_e2m1"};
  return kNames[static_cast<std::size_t>(element)];
}

constexpr const char* name_of(RowScale scale) {
  constexpr std::array kNames = {"no", "float32", "bfloat16", "float8_e8m0", "float32_power_of_two", "float8_e4m3"};
  return kNames[static_cast<std::size_t>(scale)];
}

constexpr bool exists(RowElement element) { return element <= RowElement::float4_e2m1; }
constexpr bool exists(RowScale scale) { return scale <= RowScale::float8_e4m3; }

constexpr std::int64_t bits_of(RowElement element) {
  switch (element) {
    case RowElement::float32: return 32;
    case RowElement::bfloat16:
    case RowElement::float16: return 16;
    case RowElement::float8_e4m3:
    case RowElement::int8: return 8;
    case RowElement::int4:
    case RowElement::float4_e2m1: return 4;
  }
  return 0;
}

constexpr std::int64_t bytes_of(RowScale scale) {
  switch (scale) {
    case RowScale::none: return 0;
    case RowScale::float8_e8m0:
    case RowScale::float8_e4m3: return 1;
    case RowScale::bfloat16: return 2;
    case RowScale::float32:
    case RowScale::float32_power_of_two: return 4;
  }
  return 0;
}

/// The largest magnitude of an element that has a scale.
constexpr float largest_of(RowElement element) {
  switch (element) {
    case RowElement::float32: return std::numeric_limits<float>::max();
    case RowElement::bfloat16: return 0x1.FEp127F;
    case RowElement::float16: return 65504.0F;
    case RowElement::float8_e4m3: return kLargestFloat8;
    case RowElement::int8: return 127.0F;
    case RowElement::int4: return 7.0F;
    case RowElement::float4_e2m1: return 6.0F;
  }
  return 0.0F;
}

inline std::span<const RowPart> parts_of(const RowFormat& format) {
  return {format.parts.data(), static_cast<std::size_t>(format.part_count)};
}

/// Bytes of a part's elements.
constexpr std::int64_t element_bytes(const RowPart& part) { return (part.columns * bits_of(part.element) + 7) / 8; }

/// Groups of a part that has scales, else 0.
constexpr std::int64_t groups_of(const RowPart& part) {
  return part.scale == RowScale::none ? 0 : (part.columns + part.scale_columns - 1) / part.scale_columns;
}

/// The format of rows that are plain elements of a dtype: float32, float16 or bfloat16.
inline RowFormat plain_rows(DType dtype, std::int64_t columns) {
  const RowElement element = dtype == DType::float16    ? RowElement::float16
                             : dtype == DType::bfloat16 ? RowElement::bfloat16
                                                        : RowElement::float32;
  const auto size = static_cast<std::int32_t>(size_of(dtype));
  const auto count = static_cast<std::int32_t>(columns);
  return {.parts = {RowPart{.element = element, .columns = count}},
          .part_count = 1,
          .row_bytes = size * count,
          .alignment = size};
}

/// 2^(exponent - 127); 2^-127 is below float32's normal numbers.
inline float e8m0_value(std::uint8_t bits) {
  if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return bits == 0 ? 0x1p-127F : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 23U);
}

/// The eight magnitudes of e2m1.
inline constexpr std::array kFloat4Magnitudes = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};

/// The two addresses of a row.
template <class Byte>
struct RowBytes {
  Byte* body;
  Byte* tail;  // null where the format has none
};

/// Where byte `offset` of a row lies.
template <class Byte>
constexpr Byte* byte_of(const RowBytes<Byte>& row, const RowFormat& format, std::int64_t offset) {
  const std::int64_t body_bytes = format.row_bytes - format.tail_bytes;
  return offset < body_bytes ? row.body + offset : row.tail + (offset - body_bytes);
}

/// How far apart, in bytes, the rows of a cache lie, and the tails of a page's rows from its first row. With tails the
/// rows of a page follow one another.
struct RowDistances {
  std::int64_t page, row, head;
  std::int64_t tails;  // 0: the format has none
  std::int64_t rows;   // of a page

  RowDistances(const ConstTensorView& cache, const RowFormat& format) {
    const auto rows_axis = static_cast<std::size_t>(cache.rank - 3);
    const auto element = static_cast<std::int64_t>(size_of(cache.dtype));
    const std::int64_t body = format.row_bytes - format.tail_bytes;
    const std::int64_t heads = cache.shape[rows_axis + 1];
    const bool has_tails = format.tail_bytes > 0;
    rows = cache.shape[rows_axis];
    page = rows_axis == 0 ? 0 : cache.strides[0] * element;
    row = has_tails ? heads * body : cache.strides[rows_axis] * element;
    head = has_tails ? body : cache.strides[rows_axis + 1] * element;
    tails = has_tails ? rows * heads * body : 0;
  }
};

/// Where the rows of a cache lie: uint8 [num_pages, page_size, heads_kv, row_bytes], or packed [total, heads_kv,
/// row_bytes] as a single page.
template <class Pointer>
class FormattedRows {
 public:
  using Byte = std::conditional_t<std::is_same_v<Pointer, const void*>, const std::byte, std::byte>;

  FormattedRows(const BasicTensorView<Pointer>& cache, const RowFormat& format)
      : data_(static_cast<Byte*>(cache.data)),
        tail_bytes_(format.tail_bytes),
        heads_(cache.shape[static_cast<std::size_t>(cache.rank - 2)]),
        distances_(cache, format) {}

  RowBytes<Byte> at(std::int64_t page, std::int64_t row, std::int64_t head) const {
    Byte* const start = data_ + page * distances_.page;
    Byte* const body = start + row * distances_.row + head * distances_.head;
    if (tail_bytes_ == 0) return {body, nullptr};
    return {body, start + distances_.tails + (row * heads_ + head) * tail_bytes_};
  }

 private:
  Byte* data_;
  std::int64_t tail_bytes_, heads_;
  RowDistances distances_;
};

}  // namespace strobe
