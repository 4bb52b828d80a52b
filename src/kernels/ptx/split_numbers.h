// SPDX-License-Identifier: Apache-2.0
// float32 numbers for the tensor cores: each is the sum of two tf32 numbers, and a product of two is three of these,
// a b = low high + high low + high high.
//
// Every part has 11 bits. Of A the high part is rounded to nearest, so that the low one has either sign and what it
// loses is 2^-23 of the number at most; of B, which takes more of them, it is cut off, one instruction less, and the
// low part loses 3 x 2^-23. With low low, which is left out, products are off by 2^-20 at most
// (reference/bound/arithmetic.cpp), and as A's low parts have either sign, hardly on average.
#pragma once

#include "kernels/ptx/tensor_core.h"

namespace strobe::ptx {

/// The parts of float32 numbers. Of those that are not finite the low part is NaN.
struct SplitNumbers {
  uint32_t high[4], low[4];

  /// As operand A.
  __device__ __forceinline__ void round(const uint32_t (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      set(i, x[i], x[i] + 0x1000U);
    }
  }
  /// As operand B.
  __device__ __forceinline__ void cut(const uint32_t (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      set(i, x[i], x[i]);
    }
  }

 private:
  __device__ __forceinline__ void set(int i, uint32_t x, uint32_t rounded) {
    // Times 1, which ptxas does not know: else it has the tensor cores read `rounded`, of which they do not look at the
    // other bits, and copies it to where they want it.
    high[i] = rounded & (0xffffe000U * gridDim.z);
    low[i] = __float_as_uint(__fsub_rn(__uint_as_float(x), __uint_as_float(high[i])));
  }
};

/// D = A B of 16 x 16 by 16 x 8 elements, a[i] and b[2 i] and b[2 i + 1] being columns and rows 8 i to 8 i + 7. The
/// small products come first: what is truncated is then little.
__device__ __forceinline__ void multiply_parts(float (&d)[4], const SplitNumbers (&a)[2], const SplitNumbers& b) {
  mma_m16n8k8_tf32(d, a[0].low, b.high[0], b.high[1], 0.0F, 0.0F, 0.0F, 0.0F);
  mma_m16n8k8_tf32(d, a[0].high, b.low[0], b.low[1], d[0], d[1], d[2], d[3]);
  mma_m16n8k8_tf32(d, a[1].low, b.high[2], b.high[3], d[0], d[1], d[2], d[3]);
  mma_m16n8k8_tf32(d, a[1].high, b.low[2], b.low[3], d[0], d[1], d[2], d[3]);
  mma_m16n8k8_tf32(d, a[0].high, b.high[0], b.high[1], d[0], d[1], d[2], d[3]);
  mma_m16n8k8_tf32(d, a[1].high, b.high[2], b.high[3], d[0], d[1], d[2], d[3]);
}

/// The same bits where rows and columns change places: of B, which is rounded, where above A is.
__device__ __forceinline__ void multiply_parts_of_rounded_b(float (&d)[4], const SplitNumbers (&a)[2],
                                                            const SplitNumbers& b) {
  mma_m16n8k8_tf32(d, a[0].high, b.low[0], b.low[1], 0.0F, 0.0F, 0.0F, 0.0F);
  mma_m16n8k8_tf32(d, a[0].low, b.high[0], b.high[1], d[0], d[1], d[2], d[3]);
  mma_m16n8k8_tf32(d, a[1].high, b.low[2], b.low[3], d[0], d[1], d[2], d[3]);
  mma_m16n8k8_tf32(d, a[1].low, b.high[2], b.high[3], d[0], d[1], d[2], d[3]);
  mma_m16n8k8_tf32(d, a[0].high, b.high[0], b.high[1], d[0], d[1], d[2], d[3]);
  mma_m16n8k8_tf32(d, a[1].high, b.high[2], b.high[3], d[0], d[1], d[2], d[3]);
}

}  // namespace strobe::ptx
