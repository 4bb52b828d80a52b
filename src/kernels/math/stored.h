// SPDX-License-Identifier: Apache-2.0
// K and V stored in 8 bits: elements as 16-bit ones. The product with the scale is rounded to float32 and then to the
// 16-bit format, both to nearest even, as every engine does.
#pragma once

#include "kernels/math/element.h"

namespace strobe {

#ifdef __CUDACC_RTC__

/// Four neighbouring 8-bit elements as floats; the first is in the lowest byte.
template <Element stored>
__device__ __forceinline__ void to_floats(unsigned four, float (&elements)[4]) {
  if constexpr (stored == Element::int8) {
    const unsigned biased = four ^ 0x80808080U;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 2^23 + 128 + the element, whose last bits it is
      elements[i] = __uint_as_float(__byte_perm(biased, 0x4b000000U, 0x7540U + i)) - 8388736.0F;
    }
  } else {
#if __CUDA_ARCH__ >= 890
    const float2 low = ptx::cvt_f32x2_from_f16x2(ptx::cvt_f16x2_from_e4m3x2(four));
    const float2 high = ptx::cvt_f32x2_from_f16x2(ptx::cvt_f16x2_from_e4m3x2(four >> 16));
    elements[0] = low.x;
    elements[1] = low.y;
    elements[2] = high.x;
    elements[3] = high.y;
#else  // sign, exponent and mantissa where float32 has them: 2^120 is what the exponents' biases differ by
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned byte = four >> 8 * i;
      const unsigned magnitude = (byte & 0x7fU) << 20;
      const float x = __uint_as_float(magnitude | (byte & 0x80U) << 24) * 0x1p120F;
      elements[i] = magnitude == 0x7fU << 20 ? __uint_as_float(0x7fffffffU) : x;
    }
#endif
  }
}

/// Two of the four 8-bit elements of a register as float16 numbers, which hold them exactly. int8: 1024 + 128 + the
/// element is a float16 number whose last byte is the element's, but for the sign's bit.
template <Element stored, int first, int second>
__device__ __forceinline__ unsigned to_halves(unsigned four) {
  static_assert(is_eight_bit(stored));
  if constexpr (stored == Element::int8) {
    constexpr unsigned kBytes = 0x4040U + first + (second << 8);
    constexpr unsigned kBias = 0xe480e480U;  // -1152, twice
    return ptx::add_f16x2(__byte_perm(four ^ 0x80808080U, 0x64646464U, kBytes), kBias);
  } else {
    static_assert(second == first + 1, "__byte_perm() puts them side by side");
    return first == 0 ? ptx::cvt_f16x2_from_e4m3x2(four) : ptx::cvt_f16x2_from_high_e4m3x2(four);
  }
}

/// Elements 0 and 1, and 2 and 3.
template <Element stored>
__device__ __forceinline__ uint2 neighbours(unsigned four) {
  return {to_halves<stored, 0, 1>(four), to_halves<stored, 2, 3>(four)};
}

/// Elements 0 and 2, and 1 and 3.
template <Element stored>
__device__ __forceinline__ uint2 alternate(unsigned four) {
  if constexpr (stored == Element::int8) {
    return {to_halves<stored, 0, 2>(four), to_halves<stored, 1, 3>(four)};
  } else {
    return neighbours<stored>(__byte_perm(four, 0U, 0x3120U));
  }
}

/// Four neighbouring 8-bit elements times their scale, as two pairs of 16-bit elements.
template <Element stored, Element element>
__device__ __forceinline__ uint2 to_pairs(unsigned four, float scale) {
  float elements[4];
  to_floats<stored>(four, elements);
  return {pack<element>(__fmul_rn(elements[0], scale), __fmul_rn(elements[1], scale)),
          pack<element>(__fmul_rn(elements[2], scale), __fmul_rn(elements[3], scale))};
}

/// One 8-bit element.
template <Element stored>
__device__ __forceinline__ float element_of(unsigned char bits) {
  float elements[4];
  to_floats<stored>(bits, elements);
  return elements[0];
}

/// One 8-bit element times its scale, rounded to the 16-bit element type.
template <Element stored, Element element>
__device__ __forceinline__ float converted(unsigned char bits, float scale) {
  const uint2 pairs = to_pairs<stored, element>(bits, scale);
  return to_float<element>(static_cast<unsigned short>(pairs.x));
}

#endif

}  // namespace strobe
