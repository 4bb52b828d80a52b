// SPDX-License-Identifier: Apache-2.0
// The two 16-bit floating-point formats as storage types, with exact widening and round-to-nearest-even narrowing.
#pragma once

#include <bit>
#include <cstdint>

#include "strobe/cxx20.h"

namespace strobe {

/// bfloat16: 8 exponent bits, 7 stored mantissa bits. Unit roundoff 2^-8. @stable
struct bfloat16 {
  std::uint16_t bits = 0;
};

/// IEEE 754 binary16: 5 exponent bits, 10 stored mantissa bits. Unit roundoff 2^-11, largest finite value 65504.
/// @stable
struct float16 {
  std::uint16_t bits = 0;
};

/// @stable
constexpr float to_float(float value) { return value; }

constexpr float to_float(bfloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16U); }

constexpr float to_float(float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (value.bits >> 10U) & 0x1FU;
  const std::uint32_t mantissa = value.bits & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t widened = exponent == 0x1FU ? 0xFFU : exponent + (127U - 15U);
  return std::bit_cast<float>(sign | (widened << 23U) | (mantissa << 13U));
}

/// Rounds to nearest, ties to even; NaN stays NaN. @stable
constexpr bfloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {static_cast<std::uint16_t>((bits >> 16U) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U)};
}

/// Rounds to nearest, ties to even; overflow gives infinity; NaN stays NaN. @stable
constexpr float16 to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const auto signed_bits = [sign](std::uint32_t rest) { return float16{static_cast<std::uint16_t>(sign | rest)}; };
  if (magnitude > 0x7F800000U) return signed_bits(0x7E00U);
  if (magnitude >= 0x477FF000U) return signed_bits(0x7C00U);  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 leaves the subnormal's bits in the low mantissa, rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return signed_bits(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F));
  }
  const std::uint32_t rebiased = magnitude - ((127U - 15U) << 23U);
  return signed_bits((rebiased + 0xFFFU + ((rebiased >> 13U) & 1U)) >> 13U);
}

}  // namespace strobe
