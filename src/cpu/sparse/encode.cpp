// SPDX-License-Identifier: Apache-2.0
// One row into its format, group by group.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/sparse/rows.h"

namespace strobe::cpu {
namespace {

// As of quantize(): far below what any product needs, and far above what float32 flushes.
constexpr float kSmallestScale = 0x1p-80F;
constexpr int kSmallestExponent = -80;

/// Stores a value that is no more aligned than the row.
template <class T>
void put(std::byte* at, const T& value) {
  std::memcpy(at, &value, sizeof(T));
}

/// The least power of 2 that is not below `scale`: 2^result.
int exponent_above(float scale) {
  int exponent = 0;
  const float fraction = std::frexp(scale, &exponent);  // in [0.5, 1)
  return std::max(fraction == 0.5F ? exponent - 1 : exponent, kSmallestExponent);
}

/// The least bfloat16 that is not below `scale`, which is positive.
bfloat16 bfloat16_above(float scale) {
  bfloat16 rounded = to_bfloat16(scale);
  if (to_float(rounded) < scale) ++rounded.bits;
  return rounded;
}

/// The least positive float8_e4m3 that is not below `scale`, or the largest.
float8_e4m3 float8_above(float scale) {
  float8_e4m3 rounded = to_float8_e4m3(scale);
  if (to_float(rounded) < std::min(scale, kLargestFloat8)) ++rounded.bits;
  return rounded;
}

/// Writes a group's scale and gives what a reader takes it for; NaN is written where `scale` is NaN.
float put_scale(float scale, RowScale stored, std::byte* at) {
  const bool defined = !std::isnan(scale);
  switch (stored) {
    case RowScale::none: return 1.0F;
    case RowScale::float32: put(at, scale); return scale;
    case RowScale::bfloat16: {
      const bfloat16 rounded = defined ? bfloat16_above(scale) : to_bfloat16(scale);
      put(at, rounded);
      return to_float(rounded);
    }
    case RowScale::float8_e8m0: {
      const auto bits = static_cast<std::uint8_t>(defined ? exponent_above(scale) + 127 : 255);
      put(at, bits);
      return e8m0_value(bits);
    }
    case RowScale::float8_e4m3: {
      const float8_e4m3 rounded = defined ? float8_above(scale) : to_float8_e4m3(scale);
      put(at, rounded);
      return to_float(rounded);
    }
    case RowScale::float32_power_of_two: {
      const float power = defined ? std::ldexp(1.0F, exponent_above(scale)) : scale;
      put(at, power);
      return power;
    }
  }
  return 1.0F;
}

/// The largest magnitude over the element's; NaN where a column is not finite.
float scale_of_group(const float* columns, std::int64_t count, RowElement element) {
  float largest = 0.0F;
  for (std::int64_t c = 0; c < count; ++c) {
    if (!std::isfinite(columns[c])) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::fabs(columns[c]));
  }
  return std::max(largest / largest_of(element), kSmallestScale);
}

/// Rounded to nearest even, -limit to limit; NaN is 0.
int to_integer(float x, float limit) {
  if (std::isnan(x)) return 0;
  return static_cast<int>(std::nearbyint(std::clamp(x, -limit, limit)));
}

/// The bits of the nearest e2m1. Magnitudes are 0.5 apart below 2, 1 below 4 and 2 above.
std::uint8_t to_float4(float x) {
  if (std::isnan(x)) return 0;
  const float magnitude = std::min(std::fabs(x), 6.0F);
  const float code = magnitude < 2.0F   ? std::nearbyint(magnitude * 2.0F)
                     : magnitude < 4.0F ? std::nearbyint(magnitude) + 2.0F
                                        : std::nearbyint(magnitude / 2.0F) + 4.0F;
  return static_cast<std::uint8_t>(static_cast<int>(code) | (std::signbit(x) ? 8 : 0));
}

/// Element `column` of the part that begins at `at`. The two of a byte come one after the other, the even one first.
void put_element(float x, RowElement element, std::int64_t column, std::byte* at) {
  switch (element) {
    case RowElement::float32: return put(at + 4 * column, x);
    case RowElement::bfloat16: return put(at + 2 * column, to_bfloat16(x));
    case RowElement::float16: return put(at + 2 * column, to_float16(x));
    case RowElement::float8_e4m3: return put(at + column, to_float8_e4m3(x));
    case RowElement::int8: return put(at + column, static_cast<std::int8_t>(to_integer(x, 127.0F)));
    case RowElement::int4:
    case RowElement::float4_e2m1: {
      const unsigned code =
          element == RowElement::int4 ? static_cast<unsigned>(to_integer(x, 7.0F)) & 15U : to_float4(x);
      std::byte& pair = at[column / 2];
      pair = column % 2 == 0 ? static_cast<std::byte>(code) : pair | static_cast<std::byte>(code << 4U);
      return;
    }
  }
}

void encode_part(const float* columns, const RowPart& part, const RowFormat& format, const RowBytes<std::byte>& to) {
  std::byte* const elements = byte_of(to, format, part.offset);
  const std::int64_t group = part.scale == RowScale::none ? part.columns : part.scale_columns;
  for (std::int64_t first = 0; first < part.columns; first += group) {
    const std::int64_t last = std::min<std::int64_t>(first + group, part.columns);
    float scale = 1.0F;
    if (part.scale != RowScale::none) {
      const std::int64_t offset = part.scale_offset + first / group * bytes_of(part.scale);
      scale = put_scale(scale_of_group(columns + first, last - first, part.element), part.scale,
                        byte_of(to, format, offset));
    }
    for (std::int64_t c = first; c < last; ++c) {
      const float x = std::isnan(scale) ? 0.0F : columns[c] / scale;
      put_element(x, part.element, c, elements);
    }
  }
}

}  // namespace

void encode_row(const float* columns, const RowFormat& format, const RowBytes<std::byte>& to) {
  std::memset(to.body, 0, static_cast<std::size_t>(format.row_bytes - format.tail_bytes));
  if (format.tail_bytes > 0) std::memset(to.tail, 0, static_cast<std::size_t>(format.tail_bytes));
  for (const RowPart& part : parts_of(format)) {
    encode_part(columns, part, format, to);
    columns += part.columns;
  }
}

}  // namespace strobe::cpu
