// SPDX-License-Identifier: Apache-2.0
// O in registers: what a thread holds of two of its warpgroup's rows (see fragment.h).
#pragma once

#include "kernels/math/eight_bit.h"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

template <Config C>
__device__ __forceinline__ void clear(float (&o)[C.head_dim_v / 2]) {
#pragma unroll
  for (int i = 0; i < C.head_dim_v / 2; ++i) {
    o[i] = 0.0F;
  }
}

template <Config C>
__device__ __forceinline__ void rescale(float (&o)[C.head_dim_v / 2], const float (&factor)[kRowsPerThread]) {
#pragma unroll
  for (int i = 0; i < C.head_dim_v / 2; ++i) {
    o[i] *= factor[i / 2 % kRowsPerThread];
  }
}

/// O += a block's P V, times its factor.
template <Config C, typename Sum>
__device__ __forceinline__ void add_block(float (&o)[C.head_dim_v / 2], const Sum (&block)[C.head_dim_v / 2],
                                          const float (&factor)[kRowsPerThread]) {
#pragma unroll
  for (int i = 0; i < C.head_dim_v / 2; ++i) {
    o[i] = __fmaf_rn(static_cast<float>(block[i]), factor[i / 2 % kRowsPerThread], o[i]);
  }
}

/// Columns [first, first + size) of a row of O times a Hadamard matrix, and their signs. Columns 8 j + 2 (t % 4) + c of
/// a row are register 4 j + 2 r + c of thread t: a butterfly's partner is another register, or another thread of the
/// quad.
template <int first, int size, int registers>
__device__ __forceinline__ void rotate_columns_back(float (&o)[registers], const unsigned long long (&signs)[4]) {
  static_assert((size & (size - 1)) == 0 && size >= 8);
  constexpr int kBegin = first / 2;
  constexpr int kEnd = (first + size) / 2;
#pragma unroll
  for (int half = 1; half < size / 2; half *= 2) {
    if (half == 2) {
      continue;  // the bit that tells the rows
    }
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
      if (((i - kBegin) & half) == 0) {
        const float sum = o[i] + o[i + half];
        o[i + half] = o[i] - o[i + half];
        o[i] = sum;
      }
    }
  }
#pragma unroll
  for (int lane = 1; lane < 4; lane *= 2) {
    const float own = (threadIdx.x & lane) == 0 ? 1.0F : -1.0F;
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
      o[i] = __fmaf_rn(o[i], own, __shfl_xor_sync(kFullWarp, o[i], lane));
    }
  }
  constexpr float kFactor = hadamard_factor(size);
  constexpr unsigned kSign = 0x80000000U;
#pragma unroll
  for (int i = kBegin; i < kEnd; ++i) {
    const int column = i / 4 * 8 % 64 + i % 2;  // of this thread's in 64
    const unsigned long long own = signs[i / 32] >> fragment_column();
    const auto bits = static_cast<unsigned>(own >> (column & 32));
    o[i] = __uint_as_float(__float_as_uint(o[i] * kFactor) ^ (bits << (31 - column % 32) & kSign));
  }
}

constexpr int largest_power_of_two(int most) {
  int power = 1;
  while (2 * power <= most) {
    power *= 2;
  }
  return power;
}

/// A row of O by the inverse of V's rotation, whose columns are cut into powers of two, the largest first.
template <Config C, int first = 0>
__device__ __forceinline__ void rotate_back(float (&o)[C.head_dim_v / 2], const unsigned long long (&signs)[4]) {
  if constexpr (first < C.rotated_columns) {
    constexpr int kSize = largest_power_of_two(C.rotated_columns - first);
    rotate_columns_back<first, kSize>(o, signs);
    rotate_back<C, first + kSize>(o, signs);
  }
}

}  // namespace strobe::sm90::forward
