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

/// Widens 16 bytes. `nan` becomes NaN, in one half at least, where an element is not finite.
template <Element source>
__device__ __forceinline__ void widen(const uint4& bits, float* to, unsigned& nan) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (source == Element::fp32) {
      to[i] = __uint_as_float(words[i]);
      nan = __float_as_uint(__fmaf_rn(to[i], 0.0F, __uint_as_float(nan)));
    } else {
      const float2 pair = to_floats<source>(words[i]);
      to[2 * i] = pair.x;
      to[2 * i + 1] = pair.y;
      nan = plus_zero_times<source>(nan, words[i]);
    }
  }
}

/// Whether a sum of products with zero, as widen() keeps it, is zero: whether all that it was made of is finite.
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
