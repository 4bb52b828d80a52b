// SPDX-License-Identifier: Apache-2.0
// One element or scale of a row in a format, to floats and back, to the bits that the CPU writes and reads.
#pragma once

#include "kernels/math/e4m3.h"
#include "kernels/math/row_format.h"
#include "kernels/math/stored.h"

namespace strobe {

#ifdef __CUDACC_RTC__

/// Groups of columns of a part that share a scale; 0: it has none.
constexpr int groups_of(const StoredPart& part) {
  return part.scale == StoredScale::none ? 0 : (part.columns + part.scale_columns - 1) / part.scale_columns;
}

/// Groups of the parts before one.
constexpr int first_group(const StoredFormat& format, int index) {
  int first = 0;
  for (int before = 0; before < index; ++before) {
    first += groups_of(part_of(format, before));
  }
  return first;
}

/// visit.operator()<part>() for every part.
template <StoredFormat F, int part = 0, typename Visit>
__device__ __forceinline__ void for_each_part(const Visit& visit) {
  visit.template operator()<part>();
  if constexpr (part + 1 < F.part_count) {
    for_each_part<F, part + 1>(visit);
  }
}

/// The largest magnitude of an element that has a scale.
constexpr float largest_of(StoredElement element) {
  return element == StoredElement::float8_e4m3 ? 448.0F
         : element == StoredElement::int8      ? 127.0F
         : element == StoredElement::int4      ? 7.0F
                                               : 6.0F;
}

/// Magnitudes are 0.5 apart below 2, 1 below 4 and 2 above.
__device__ __forceinline__ unsigned e2m1_bits(float x) {
  const float magnitude = fminf(fabsf(x), 6.0F);
  const float code = magnitude < 2.0F   ? rintf(magnitude * 2.0F)
                     : magnitude < 4.0F ? rintf(magnitude) + 2.0F
                                        : rintf(magnitude * 0.5F) + 4.0F;
  return static_cast<unsigned>(code) | (__float_as_uint(x) >> 28 & 8U);
}

/// The bits of the nearest element.
template <StoredElement stored>
__device__ __forceinline__ unsigned bits_of_value(float x) {
  if constexpr (stored == StoredElement::float32) {
    return __float_as_uint(x);
  } else if constexpr (stored == StoredElement::bfloat16) {
    return pack<Element::bf16>(x, 0.0F) & 0xffffU;
  } else if constexpr (stored == StoredElement::float16) {
    return pack<Element::fp16>(x, 0.0F) & 0xffffU;
  } else if constexpr (stored == StoredElement::float8_e4m3) {
    return to_e4m3(x);
  } else if constexpr (stored == StoredElement::float4_e2m1) {
    return e2m1_bits(x);
  } else {
    constexpr float kLargest = largest_of(stored);
    const int integer = __float2int_rn(fminf(fmaxf(x, -kLargest), kLargest));
    return static_cast<unsigned>(integer) & (stored == StoredElement::int8 ? 0xffU : 15U);
  }
}

/// What the element with those bits is.
template <StoredElement stored>
__device__ __forceinline__ float value_of_bits(unsigned bits) {
  if constexpr (stored == StoredElement::float32) {
    return __uint_as_float(bits);
  } else if constexpr (stored == StoredElement::bfloat16) {
    return to_float<Element::bf16>(static_cast<unsigned short>(bits));
  } else if constexpr (stored == StoredElement::float16) {
    return to_float<Element::fp16>(static_cast<unsigned short>(bits));
  } else if constexpr (stored == StoredElement::float8_e4m3) {
    return element_of<Element::e4m3>(static_cast<unsigned char>(bits));
  } else if constexpr (stored == StoredElement::int8) {
    return element_of<Element::int8>(static_cast<unsigned char>(bits));
  } else if constexpr (stored == StoredElement::int4) {  // 2^23 + 8 + the element, whose last bits it is
    return __uint_as_float(0x4b000000U | (bits ^ 8U)) - 8388616.0F;
  } else {  // sign, exponent and mantissa where float32 has them: 2^126 is what the exponents' biases differ by
    return __fmul_rn(__uint_as_float((bits & 7U) << 22 | (bits & 8U) << 28), 0x1p126F);
  }
}

template <StoredScale stored>
__device__ __forceinline__ float scale_value(unsigned bits) {
  if constexpr (stored == StoredScale::bfloat16) {
    return __uint_as_float(bits << 16);
  } else if constexpr (stored == StoredScale::float8_e4m3) {
    return element_of<Element::e4m3>(static_cast<unsigned char>(bits));
  } else if constexpr (stored == StoredScale::float8_e8m0) {
    constexpr unsigned kNaN = 0x7fc00000U;
    constexpr unsigned kLeast = 0x00400000U;  // 2^-127, below float32's normal numbers
    return __uint_as_float(bits == 255U ? kNaN : bits == 0U ? kLeast : bits << 23);
  } else {
    return __uint_as_float(bits);
  }
}

/// The bits of the least scale that is not below `scale`, which is at least 2^-80, as far as there is one; of NaN where
/// that is not defined.
template <StoredScale stored>
__device__ __forceinline__ unsigned scale_bits(float scale, bool defined) {
  const unsigned bits = __float_as_uint(scale);
  const unsigned power = (bits >> 23) + ((bits & 0x7fffffU) != 0U ? 1U : 0U);  // a biased exponent
  if constexpr (stored == StoredScale::float32) {
    return defined ? bits : 0x7fc00000U;
  } else if constexpr (stored == StoredScale::float32_power_of_two) {
    return defined ? power << 23 : 0x7fc00000U;
  } else if constexpr (stored == StoredScale::float8_e8m0) {
    return defined ? power : 255U;
  } else if constexpr (stored == StoredScale::bfloat16) {
    const unsigned rounded = pack<Element::bf16>(scale, 0.0F) & 0xffffU;
    return !defined ? 0x7fc0U : scale_value<stored>(rounded) < scale ? rounded + 1U : rounded;
  } else {
    const unsigned rounded = to_e4m3(scale);
    const bool below = scale_value<stored>(rounded) < fminf(scale, 448.0F);
    return !defined ? 0x7fU : below ? rounded + 1U : rounded;
  }
}

/// Stores `bytes` bytes of a number where that is aligned to them.
template <int bytes>
__device__ __forceinline__ void store_bits(unsigned char* to, unsigned bits) {
  if constexpr (bytes == 4) {
    *reinterpret_cast<unsigned*>(to) = bits;
  } else if constexpr (bytes == 2) {
    *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(bits);
  } else {
    *to = static_cast<unsigned char>(bits);
  }
}

/// Reads them from global memory.
template <int bytes>
__device__ __forceinline__ unsigned load_bits(const unsigned char* from) {
  if constexpr (bytes == 4) {
    return __ldg(reinterpret_cast<const unsigned*>(from));
  } else if constexpr (bytes == 2) {
    return __ldg(reinterpret_cast<const unsigned short*>(from));
  } else {
    return __ldg(from);
  }
}

#endif

}  // namespace strobe
