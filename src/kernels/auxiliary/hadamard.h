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

/// The bits of the larger magnitude of a + b and a - b.
__device__ __forceinline__ unsigned larger_of_butterfly(float a, float b) {
  return __float_as_uint(__fadd_rn(fabsf(a), fabsf(b)));
}

/// The last butterflies of x[0], ..., x[2 half - 1]; the bits of the largest magnitude of what they make.
template <int half>
__device__ __forceinline__ unsigned last_butterflies(float* x) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < half; ++i) {
    largest = max(largest, larger_of_butterfly(x[i], x[half + i]));
    const float sum = x[i] + x[half + i];
    x[half + i] = x[i] - x[half + i];
    x[i] = sum;
  }
  return largest;
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

/// Two slices of a row, of 2 half columns each, in two lanes: each lane keeps half of its columns and makes sums and
/// differences of them and the same columns of the other slice, so that half of the numbers move.
///
/// Lanes with a set lane_bit hold their slice's halves the other way round. `kept` is what this lane keeps first: 1,
/// sums, or -1, differences; these are negated in lanes with a set bit.
template <int half>
__device__ __forceinline__ void exchange_butterflies(float* x, int lane_bit, float kept) {
#pragma unroll
  for (int i = 0; i < half; ++i) {
    const float other = __shfl_xor_sync(0xffffffffU, x[half + i], lane_bit);
    x[half + i] = __fmaf_rn(other, -kept, x[i]);
    x[i] = __fmaf_rn(other, kept, x[i]);
  }
}

/// The same, sums first, where nothing follows; the bits of the largest magnitude of what this lane makes.
template <int half>
__device__ __forceinline__ unsigned last_exchange_butterflies(float* x, int lane_bit) {
#pragma unroll
  for (int i = 0; i < half; ++i) x[half + i] = __shfl_xor_sync(0xffffffffU, x[half + i], lane_bit);
  return last_butterflies<half>(x);
}

/// The butterflies of a slice of 2 half columns; `swapped`: whose halves lie the other way round, and so do those of
/// the result.
template <int half>
__device__ __forceinline__ void swapped_butterflies(float* x, bool swapped) {
  butterflies<half>(x);
  butterflies<half>(x + half);
  const float sign = swapped ? -1.0F : 1.0F;
#pragma unroll
  for (int i = 0; i < half; ++i) {
    const float first = __fmaf_rn(x[i], sign, x[half + i]);
    x[half + i] = __fmaf_rn(x[half + i], -sign, x[i]);
    x[i] = first;
  }
}

}  // namespace strobe::auxiliary
