// SPDX-License-Identifier: Apache-2.0
// O in registers: what a thread holds of two of its warpgroup's rows (see fragment.h).
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/tile/fragment.h"

namespace strobe::hopper::forward {

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

/// A row of O times the Hadamard matrix of V's rotation, and its signs. Columns 8 j + 2 (t % 4) + c of a row are
/// register 4 j + 2 r + c of thread t: a butterfly's partner is another register, or another thread of the quad.
template <Config C>
__device__ __forceinline__ void rotate_back(float (&o)[C.head_dim_v / 2], const unsigned long long (&signs)[4]) {
  static_assert((C.head_dim_v & (C.head_dim_v - 1)) == 0);
  constexpr float kFactor = C.head_dim_v == 64 ? 0.125F : C.head_dim_v == 128 ? 0.0883883461F : 0.0625F;
  constexpr int kRegisters = C.head_dim_v / 2;
#pragma unroll
  for (int half = 1; half < kRegisters; half *= 2) {
    if (half == 2) {
      continue;  // the bit that tells the rows
    }
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      if ((i & half) == 0) {
        const float sum = o[i] + o[i + half];
        o[i + half] = o[i] - o[i + half];
        o[i] = sum;
      }
    }
  }
#pragma unroll
  for (int lane = 1; lane < 4; lane *= 2) {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const float other = __shfl_xor_sync(kFullWarp, o[i], lane);
      o[i] = (threadIdx.x & lane) == 0 ? o[i] + other : other - o[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) {
    const int column = i / 4 * 8 + fragment_column() + i % 2;
    const bool negative = (signs[i / 32] >> (column % 64) & 1) != 0;
    o[i] *= negative ? -kFactor : kFactor;
  }
}

}  // namespace strobe::hopper::forward
