// SPDX-License-Identifier: Apache-2.0
// The 8-bit floating-point format e4m3 as a storage type, with exact widening and round-to-nearest-even narrowing.
#pragma once

#include <bit>
#include <cstdint>

#include "strobe/cxx20.h"

namespace strobe {

/// float8 e4m3 ("e4m3fn"): 4 exponent bits, 3 stored mantissa bits, bias 7, no infinities. Unit roundoff 2^-4, largest
/// value 448, smallest positive value 2^-9. Source: Micikevicius et al., "FP8 formats for deep learning" (2022).
/// @stable
struct float8_e4m3 {
  std::uint8_t bits = 0;
};

/// @stable
inline constexpr float kLargestFloat8 = 448.0F;

/// @stable
constexpr float to_float(float8_e4m3 value) {
  const std::uint32_t sign = (value.bits & 0x80U) << 24U;
  const std::uint32_t magnitude = value.bits & 0x7FU;
  if (magnitude == 0x7FU) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (magnitude < 0x08U) {  // zero or subnormal: mantissa * 2^-9
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9F) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20U) + ((127U - 7U) << 23U)));
}

/// Rounds to nearest, ties to even; what is larger than 448 becomes 448, as the conversion instructions of GPUs do; NaN
/// stays NaN. @stable
constexpr float8_e4m3 to_float8_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24U) & 0x80U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const auto signed_bits = [sign](std::uint32_t rest) { return float8_e4m3{static_cast<std::uint8_t>(sign | rest)}; };
  if (magnitude > 0x7F800000U) return signed_bits(0x7FU);
  if (magnitude >= 0x43E00000U) return signed_bits(0x7EU);  // 448 and more
  if (magnitude < 0x3C800000U) {  // below 2^-6: adding 2^14 leaves multiples of 2^-9 in the low mantissa, rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
    return signed_bits(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0x1p14F));
  }
  const std::uint32_t rebiased = magnitude - ((127U - 7U) << 23U);
  return signed_bits((rebiased + 0x7FFFFU + ((rebiased >> 20U) & 1U)) >> 20U);
}

}  // namespace strobe
