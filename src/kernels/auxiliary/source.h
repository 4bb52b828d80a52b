// SPDX-License-Identifier: Apache-2.0
// Elements of Q, K and V as the quantiser reads them.
#pragma once

#include "kernels/auxiliary/quantize_params.h"
#include "kernels/math/element.h"
#include "kernels/ptx/grid.h"

namespace strobe::auxiliary {

/// Elements of 16 bytes.
template <Element source>
constexpr int kVector = 16 / bytes_of(source);

/// Widens 16 bytes.
template <Element source>
__device__ __forceinline__ void widen(const uint4& bits, float* to) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (source == Element::fp32) {
      to[i] = __uint_as_float(words[i]);
    } else {
      const float2 pair = to_floats<source>(words[i]);
      to[2 * i] = pair.x;
      to[2 * i + 1] = pair.y;
    }
  }
}

/// `nan` becomes NaN, in one half at least, where one of the elements of 16 bytes is not finite.
template <Element source>
__device__ __forceinline__ void find_not_finite(const uint4& bits, unsigned& nan) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (const unsigned word : words) {
    if constexpr (source == Element::fp32) {
      nan = __float_as_uint(__fmaf_rn(__uint_as_float(word), 0.0F, __uint_as_float(nan)));
    } else {
      nan = plus_zero_times<source>(nan, word);
    }
  }
}

/// What to_doubles() leaves out: bfloat16's exponent among a double's bits is another power of two's.
template <Element source>
constexpr double kMeanFactor = source == Element::bf16 ? 0x1p896 : 1.0;

/// 16 bytes as doubles, over kMeanFactor. Without `exact_not_finite`, bfloat16's infinities and NaNs become numbers.
template <Element source, bool exact_not_finite>
__device__ __forceinline__ void to_doubles(const uint4& bits, double (&to)[kVector<source>]) {
  if constexpr (source == Element::bf16 && !exact_not_finite) {
    // Sign and exponent move to where a double has them, three bits further right; the sign stays.
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
    constexpr unsigned kBits = 0x8fffe000U;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int low = static_cast<int>(words[i] << 16) >> 3;
      const int high = static_cast<int>(words[i]) >> 3;
      to[2 * i] = __hiloint2double(static_cast<int>(low & kBits), 0);
      to[2 * i + 1] = __hiloint2double(static_cast<int>(high & kBits), 0);
    }
  } else {
    float x[kVector<source>];
    widen<source>(bits, x);
#pragma unroll
    for (int i = 0; i < kVector<source>; ++i) to[i] = static_cast<double>(x[i]) / kMeanFactor<source>;
  }
}

/// Whether a sum of products with zero, as find_not_finite() keeps it, is zero: whether all that it was made of is
/// finite.
template <Element source>
__device__ __forceinline__ bool is_zero(unsigned nan) {
  return (nan & (source == Element::fp32 ? 0x7fffffffU : 0x7fff7fffU)) == 0;
}

/// 16 bytes of a row that need not lie at a multiple of them.
template <Element source, bool aligned>
__device__ __forceinline__ uint4 load_vector(const void* row, long long element) {
  if constexpr (aligned) {
    const char* at = static_cast<const char*>(row) + element * bytes_of(source);
    return *reinterpret_cast<const uint4*>(at);
  } else if constexpr (source == Element::fp32) {
    const auto* at = static_cast<const unsigned*>(row) + element;
    return make_uint4(at[0], at[1], at[2], at[3]);
  } else {
    const auto* at = static_cast<const unsigned short*>(row) + element;
    const auto pair = [&](int i) { return at[i] | static_cast<unsigned>(at[i + 1]) << 16; };
    return make_uint4(pair(0), pair(2), pair(4), pair(6));
  }
}

}  // namespace strobe::auxiliary
