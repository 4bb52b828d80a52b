// SPDX-License-Identifier: Apache-2.0
// Hadamard transforms of rows in registers, by the additions of call/eight_bit.h in their order: the bits are the same.
#pragma once

#include "kernels/math/eight_bit.h"

namespace strobe::auxiliary {

constexpr int largest_power(int count) {
  int power = 1;
  while (2 * power <= count) power *= 2;
  return power;
}

/// The butterflies of x[0], ..., x[size - 1]: of neighbours first, then of twice the distance each time.
template <int size, int half = 1>
__device__ __forceinline__ void butterflies(float* x) {
  if constexpr (half < size) {
#pragma unroll
    for (int pair = 0; pair < size / 2; ++pair) {
      const int j = pair / half * 2 * half + pair % half;
      const float sum = x[j] + x[j + half];
      x[j + half] = x[j] - x[j + half];
      x[j] = sum;
    }
    butterflies<size, 2 * half>(x);
  }
}

/// x times the orthonormal matrices of the powers of two that `count` is the sum of, the largest first.
template <int count>
__device__ __forceinline__ void hadamard_transform(float* x) {
  if constexpr (count > 0) {
    constexpr int kSize = largest_power(count);
    butterflies<kSize>(x);
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[i] *= hadamard_factor(kSize);
    hadamard_transform<count - kSize>(x + kSize);
  }
}

/// The butterflies of lanes whose numbers differ in bit `lane_bit`; `second`: this one's is set. Lanes that do not take
/// part keep what they have.
template <int size>
__device__ __forceinline__ void lane_butterflies(float* x, int lane_bit, bool takes_part, bool second) {
  const float own = second ? -1.0F : 1.0F;
#pragma unroll
  for (int i = 0; i < size; ++i) {
    const float other = __shfl_xor_sync(0xffffffffU, x[i], lane_bit);
    if (takes_part) x[i] = __fmaf_rn(x[i], own, other);
  }
}

}  // namespace strobe::auxiliary
