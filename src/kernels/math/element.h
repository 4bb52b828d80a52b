// SPDX-License-Identifier: Apache-2.0
// What the elements of tensors are in kernels. Plain constexpr C++, shared by host and device, but for the conversions.
#pragma once

#ifdef __CUDACC_RTC__
#include <cuda_fp16.h>

#include "kernels/ptx/arithmetic.h"
#endif

namespace strobe {

enum class Element : unsigned char { bf16, fp16, fp32, int8, e4m3 };

constexpr int bytes_of(Element element) {
  switch (element) {
    case Element::fp32: return 4;
    case Element::bf16:
    case Element::fp16: return 2;
    default: return 1;
  }
}

/// Tensors of attention's rows count 16 bits: so many are an element. Of 8-bit elements, which pairs are counted of, 0.
constexpr int halves_of(Element element) { return bytes_of(element) / 2; }

/// Elements that have a scale.
constexpr bool is_eight_bit(Element element) { return bytes_of(element) == 1; }

#ifdef __CUDACC_RTC__

// Conversions of 16-bit elements.

template <Element element>
__device__ __forceinline__ float to_float(unsigned short bits) {
  static_assert(bytes_of(element) == 2);
  if constexpr (element == Element::bf16) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  } else {
    return __half2float(__ushort_as_half(bits));
  }
}

/// An element of a row that counts 16 bits.
template <Element element>
__device__ __forceinline__ float element_at(const unsigned short* row, int column) {
  if constexpr (element == Element::fp32) {
    return reinterpret_cast<const float*>(row)[column];
  } else {
    return to_float<element>(row[column]);
  }
}

/// Rounds two floats to the element type, to nearest even; `low` is in the low half.
template <Element element>
__device__ __forceinline__ unsigned pack(float low, float high) {
  static_assert(bytes_of(element) == 2);
  if constexpr (element == Element::bf16) {
    return ptx::cvt_bf16x2(low, high);
  } else {
    return ptx::cvt_f16x2(low, high);
  }
}

/// Stores an element of a row that counts 16 bits.
template <Element element>
__device__ __forceinline__ void set_element(unsigned short* row, int column, float x) {
  if constexpr (element == Element::fp32) {
    reinterpret_cast<float*>(row)[column] = x;
  } else {
    row[column] = static_cast<unsigned short>(pack<element>(x, 0.0F));
  }
}

/// The two 16-bit elements of a register as floats, low first.
template <Element element>
__device__ __forceinline__ float2 to_floats(unsigned pair) {
  static_assert(bytes_of(element) == 2);
  if constexpr (element == Element::bf16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
  } else {
    float2 both;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(both.x), "=f"(both.y)
        : "r"(pair));
    return both;
  }
}

/// sum + 0 * x, for two elements each: NaN where x is not finite.
template <Element element>
__device__ __forceinline__ unsigned plus_zero_times(unsigned sum, unsigned x) {
  static_assert(bytes_of(element) == 2);
  if constexpr (element == Element::bf16) {
    return ptx::fma_bf16x2(x, 0U, sum);
  } else {
    return ptx::fma_f16x2(x, 0U, sum);
  }
}

#endif

}  // namespace strobe
