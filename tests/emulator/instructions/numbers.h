// SPDX-License-Identifier: Apache-2.0
// Formats that the host's processor does not compute in.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace strobe::emulator {

inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

/// Zero of the same sign for a subnormal number.
inline float flushed(float x) {
  const std::uint32_t bits = bits_of(x);
  return float_of((bits & 0x7f800000U) == 0 ? bits & 0x80000000U : bits);
}

inline constexpr std::uint32_t kNan32 = 0x7fffffffU;  // what instructions return

inline float from_bfloat16(std::uint16_t bits) { return float_of(static_cast<std::uint32_t>(bits) << 16); }
inline std::uint16_t to_bfloat16(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return 0x7fff;
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1)) >> 16);
}

inline float from_float16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  if (magnitude >= 0x7c00) return float_of(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
  // As an integer times the smallest number, which is exact whether it is normal or not.
  const float shifted = float_of(magnitude << 13) * 0x1p112F;
  return float_of(sign | bits_of(shifted));
}

/// To nearest even.
inline std::uint16_t to_float16(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return 0x7fff;
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);
  if (magnitude < 0x38800000U) {  // subnormal: the sum's last bit is worth 2^-24
    const float sum = float_of(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (bits_of(sum) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + (magnitude >> 13 & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

/// Of 8 bits: `mantissa` of them behind the exponent, whose bias is `bias`; e4m3 has no infinities.
inline float from_float8(std::uint8_t bits, int mantissa, int bias) {
  const int exponent_bits = 7 - mantissa;
  const int exponent = bits >> mantissa & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << mantissa) - 1);
  const bool is_last = exponent == (1 << exponent_bits) - 1;
  float value = 0.0F;
  if (mantissa == 3 && (bits & 0x7f) == 0x7f) {
    value = float_of(kNan32);
  } else if (mantissa == 2 && is_last) {
    value = fraction == 0 ? INFINITY : float_of(kNan32);
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa);
  } else {
    value = std::ldexp(static_cast<float>(fraction + (1 << mantissa)), exponent - bias - mantissa);
  }
  return (bits & 0x80) != 0 ? -value : value;
}
inline float from_e4m3(std::uint8_t bits) { return from_float8(bits, 3, 7); }
inline float from_e5m2(std::uint8_t bits) { return from_float8(bits, 2, 15); }

/// To nearest even, and the largest finite number where it is too large (satfinite).
inline std::uint8_t to_float8(float x, int mantissa, int bias, std::uint8_t largest) {
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return 0x7f;
  const float magnitude = std::fabs(x);
  if (magnitude >= from_float8(largest, mantissa, bias)) return sign | largest;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 1 - mantissa, 1 - bias - mantissa);  // of the last place
  const auto places = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));
  if (places == 0) return sign;
  // Fractions that round up carry into the exponent by themselves.
  const int steps = unit - (1 - bias - mantissa);
  const int code = steps == 0 ? places : (steps << mantissa) + places;
  return static_cast<std::uint8_t>(sign | code);
}
inline std::uint8_t to_e4m3(float x) { return to_float8(x, 3, 7, 0x7e); }
inline std::uint8_t to_e5m2(float x) { return to_float8(x, 2, 15, 0x7b); }

}  // namespace strobe::emulator
