// SPDX-License-Identifier: Apache-2.0
// A float32 as the sum of high and low parts: three or four numbers of 16 bits times constants, so that the tensor
// cores add it to scores as a product of a few more columns.
#pragma once

#include "kernels/math/element.h"

namespace strobe {

inline constexpr int kHiLoBytes = 16;  // eight numbers, the least that a shared-memory descriptor counts in

// Scores that are divided by less than this leave the range of the parts: then LSE stays one float32.
inline constexpr float kLeastHiLoScale = 1.0F / 4096.0F;

#ifdef __CUDACC_RTC__

/// The constants of columns 2 pair and 2 pair + 1. bfloat16 has three parts of eight bits, in the range of float32;
/// float16 has four, of eleven bits each, that reach from 2^31 down to 2^-34.
template <Element element>
__device__ __forceinline__ unsigned hi_lo_factors(int pair) {
  constexpr bool kHalf = element == Element::fp16;
  constexpr unsigned kFirst = kHalf ? 0x4c007800U : 0x3f803f80U;   // 2^15, 2^4; 1, 1
  constexpr unsigned kSecond = kHalf ? 0x14003c00U : 0x00003f80U;  // 1, 2^-10; 1, 0
  return pair == 0 ? kFirst : pair == 1 ? kSecond : 0U;
}

/// Whether the parts hold a score of any size.
template <Element element>
constexpr bool hi_lo_holds_any = element == Element::bf16;

/// The parts of x, in the order of hi_lo_factors().
template <Element element>
__device__ __forceinline__ uint4 hi_lo(float x) {
  constexpr bool kHalf = element == Element::fp16;
  constexpr float kMost = kHalf ? 2.0e9F : 3.0e38F;
  x = fminf(fmaxf(x, -kMost), kMost) + 0.0F * x;  // NaN stays NaN
  const auto part = [&x](float factor) {
    const float rounded = to_floats<element>(pack<element>(x * (1.0F / factor), 0.0F)).x;
    x = __fmaf_rn(rounded, -factor, x);
    return rounded;
  };
  const float a = part(kHalf ? 32768.0F : 1.0F);
  const float b = part(kHalf ? 16.0F : 1.0F);
  const float c = part(1.0F);
  const float d = kHalf ? part(1.0F / 1024.0F) : 0.0F;
  return {pack<element>(a, b), pack<element>(c, d), 0U, 0U};
}

#endif

}  // namespace strobe
