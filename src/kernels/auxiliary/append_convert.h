// SPDX-License-Identifier: Apache-2.0
// Vectors of rows on their way into a cache: float32 between what they hold before and after, with the bits of the CPU
// engine for all but NaNs: no product and sum are fused, quotients and results are rounded to nearest even.
#pragma once

#include "kernels/auxiliary/append_params.h"
#include "kernels/math/e4m3.h"
#include "kernels/math/eight_bit.h"
#include "kernels/math/element.h"

namespace strobe::auxiliary {

inline constexpr float kLargestE4m3 = 448.0F;

/// `count` elements as they lie in memory, the first in the lowest bits.
template <Element stored, int count>
struct VectorWords {
  static constexpr int kBytes = count * bytes_of(stored);
  unsigned words[(kBytes + 3) / 4];
};

/// Loads from memory that nothing writes while the kernel runs.
template <Element stored, int count>
__device__ __forceinline__ VectorWords<stored, count> load_words(const void* from, long long element) {
  VectorWords<stored, count> loaded;
  constexpr int kBytes = VectorWords<stored, count>::kBytes;
  const char* const at = static_cast<const char*>(from) + element * bytes_of(stored);
  if constexpr (kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(at) + i);
      loaded.words[4 * i] = four.x;
      loaded.words[4 * i + 1] = four.y;
      loaded.words[4 * i + 2] = four.z;
      loaded.words[4 * i + 3] = four.w;
    }
  } else if constexpr (kBytes == 8) {
    const uint2 two = __ldg(reinterpret_cast<const uint2*>(at));
    loaded.words[0] = two.x;
    loaded.words[1] = two.y;
  } else if constexpr (kBytes == 4) {
    loaded.words[0] = __ldg(reinterpret_cast<const unsigned*>(at));
  } else {
    static_assert(kBytes == 2);
    loaded.words[0] = __ldg(reinterpret_cast<const unsigned short*>(at));
  }
  return loaded;
}

template <Element stored, int count>
__device__ __forceinline__ void store_words(void* to, long long element, const VectorWords<stored, count>& vector) {
  constexpr int kBytes = VectorWords<stored, count>::kBytes;
  char* const at = static_cast<char*>(to) + element * bytes_of(stored);
  const auto& words = vector.words;
  if constexpr (kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      reinterpret_cast<uint4*>(at)[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    }
  } else if constexpr (kBytes == 8) {
    *reinterpret_cast<uint2*>(at) = make_uint2(words[0], words[1]);
  } else if constexpr (kBytes == 4) {
    *reinterpret_cast<unsigned*>(at) = words[0];
  } else if constexpr (kBytes == 2) {
    *reinterpret_cast<unsigned short*>(at) = static_cast<unsigned short>(words[0]);
  } else {
    *at = static_cast<char>(words[0]);
  }
}

/// Elements [first, first + part).
template <Element stored, int count, int part>
__device__ __forceinline__ void to_floats(const VectorWords<stored, count>& vector, int first, float (&x)[part]) {
  if constexpr (stored == Element::fp32) {
#pragma unroll
    for (int i = 0; i < part; ++i) x[i] = __uint_as_float(vector.words[first + i]);
  } else if constexpr (count == 1) {
    x[0] = to_float<stored>(static_cast<unsigned short>(vector.words[0]));
  } else {
#pragma unroll
    for (int i = 0; i < part; i += 2) {
      const float2 pair = strobe::to_floats<stored>(vector.words[(first + i) / 2]);
      x[i] = pair.x;
      x[i + 1] = pair.y;
    }
  }
}

/// Rounded to nearest even and limited to +-127; NaN becomes 0.
__device__ __forceinline__ unsigned to_int8(float x) {
  const float limited = fminf(fmaxf(x, -kLargestInt8), kLargestInt8);
  const unsigned bits = __float_as_uint(__fadd_rn(limited, 12582912.0F));  // 1.5 * 2^23: the last bits are the integer
  return x == x ? bits & 0xffU : 0U;
}

/// Four floats rounded to the 8-bit format, the first in the lowest byte.
template <Element stored>
__device__ __forceinline__ unsigned to_bytes(const float (&x)[4]) {
#if __CUDA_ARCH__ >= 890
  if constexpr (stored == Element::e4m3) return ptx::cvt_e4m3x4(x[0], x[1], x[2], x[3]);
#endif
  unsigned bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) bytes |= (stored == Element::int8 ? to_int8(x[i]) : to_e4m3(x[i])) << (8 * i);
  return bytes;
}

/// What elements are divided by before they are rounded to 8 bits.
struct Scale {
  float scale, reciprocal;
  bool ordinary;  // no product or remainder below is too small for float32

  __device__ __forceinline__ explicit Scale(float scale_in)
      : scale(scale_in), reciprocal(__frcp_rn(scale_in)), ordinary(scale_in >= 0x1p-60F && scale_in <= 0x1p60F) {}

  /// x / scale of an ordinary scale as 8 bits see it: rounded to nearest even where they tell numbers apart, beyond
  /// that on the same side, and zeros with their sign.
  /// One step of Newton's method from a reciprocal that is rounded to nearest gives the rounded quotient.
  /// Source: Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor" (1990), theorem 8.
  __device__ __forceinline__ float quotient(float x) const {
    const float near = __fmul_rn(x, reciprocal);
    // near * scale - x and not its negative, which would give a zero of x another sign.
    const float excess = __fmaf_rn(near, scale, -x);
    const float rounded = __fmaf_rn(excess, -reciprocal, near);
    return fabsf(near) <= 0x1p10F ? rounded : near;
  }

  /// Quotients in place of x. One branch for all of them: what follows can be interleaved.
  template <int count>
  __device__ __forceinline__ void divide(float (&x)[count]) const {
    if (ordinary) {
#pragma unroll
      for (int i = 0; i < count; ++i) x[i] = quotient(x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i) x[i] = __fdiv_rn(x[i], scale);
    }
  }
};

/// Elements [first, first + part), rounded to nearest even; for 8 bits the quotients with their scale, which x then
/// holds.
template <Element stored, int count, int part>
__device__ __forceinline__ void from_floats(float (&x)[part], const Scale& scale, int first,
                                            VectorWords<stored, count>& vector) {
  if constexpr (stored == Element::fp32) {
#pragma unroll
    for (int i = 0; i < part; ++i) vector.words[first + i] = __float_as_uint(x[i]);
  } else if constexpr (bytes_of(stored) == 2) {
    if constexpr (count == 1) {
      vector.words[0] = pack<stored>(x[0], 0.0F);
    } else {
#pragma unroll
      for (int i = 0; i < part; i += 2) vector.words[(first + i) / 2] = pack<stored>(x[i], x[i + 1]);
    }
  } else {
    scale.divide(x);
#pragma unroll
    for (int i = 0; i < part; i += 4) {
      float quotients[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) quotients[j] = i + j < part ? x[(i + j) % part] : 0.0F;
      vector.words[(first + i) / 4] = to_bytes<stored>(quotients);
    }
  }
}

/// Cosines or sines.
template <int count>
__device__ __forceinline__ void load_angles(const void* table, Element holds, long long element,
                                            float (&angles)[count]) {
  if (holds == Element::fp32) {
    to_floats(load_words<Element::fp32, count>(table, element), 0, angles);
  } else if (holds == Element::fp16) {
    to_floats(load_words<Element::fp16, count>(table, element), 0, angles);
  } else {
    to_floats(load_words<Element::bf16, count>(table, element), 0, angles);
  }
}

/// (a, b) -> (a cos - b sin, a sin + b cos).
__device__ __forceinline__ void rotate_pair(float cos, float sin, float& a, float& b) {
  const float turned = __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
  b = __fadd_rn(__fmul_rn(a, sin), __fmul_rn(b, cos));
  a = turned;
}

/// a with b, or the pairs of neighbours in a, by the angles from `angle` on. NaNs where the position is less than 0.
template <bool neighbours, int part>
__device__ __forceinline__ void rotate_part(const AppendParams& params, int angle, int position, float (&a)[part],
                                            float (&b)[part]) {
  constexpr int kAngles = neighbours ? part / 2 : part;
  float cos[kAngles];
  float sin[kAngles];
  if (position >= 0) {
    load_angles<kAngles>(params.cos, params.cos_holds, position * params.cos_row + angle, cos);
    load_angles<kAngles>(params.sin, params.sin_holds, position * params.sin_row + angle, sin);
  } else {
#pragma unroll
    for (int i = 0; i < kAngles; ++i) cos[i] = sin[i] = __uint_as_float(0x7fc00000U);
  }
#pragma unroll
  for (int i = 0; i < kAngles; ++i) {
    if constexpr (neighbours) {
      rotate_pair(cos[i], sin[i], a[2 * i], a[2 * i + 1]);
    } else {
      rotate_pair(cos[i], sin[i], a[i], b[i]);
    }
  }
}

}  // namespace strobe::auxiliary
