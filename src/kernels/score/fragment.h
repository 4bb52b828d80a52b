// Where a thread's accumulator registers lie in the 64 x N tile of its warpgroup.
//
// Thread t of a warp holds rows t / 4 and t / 4 + 8 of the warp's sixteen; of every eight columns it holds 2 (t % 4)
// and the next. Register 4 j + 2 r + c is row r (0, 1), column 8 j + 2 (t % 4) + c.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/ptx/warpgroup.h"

namespace strobe::hopper {

constexpr int kRowsPerThread = 2;
constexpr unsigned kFullWarp = 0xffffffffU;

/// Row r of this thread within its warpgroup's 64.
__device__ __forceinline__ int fragment_row(int r) {
  const int thread = threadIdx.x % kWarpgroupSize;
  return (thread / kWarpSize) * 16 + (thread % kWarpSize) / 4 + 8 * r;
}

/// First column of this thread within every eight.
__device__ __forceinline__ int fragment_column() { return 2 * (threadIdx.x % 4); }

template <Element element>
__device__ __forceinline__ cuda::std::uint32_t pack(float low, float high) {
  if constexpr (element == Element::bf16) {
    return ptx::cvt_bf16x2(low, high);
  } else {
    return ptx::cvt_f16x2(low, high);
  }
}

/// Probabilities become A operands where they are: the accumulator's layout is the operand's, two columns a register.
template <Element element, int n>
__device__ __forceinline__ void to_operand(cuda::std::uint32_t (&p)[n / 8][4], const float (&s)[n]) {
#pragma unroll
  for (int i = 0; i < n; i += 2) {
    p[i / 8][(i % 8) / 2] = pack<element>(s[i], s[i + 1]);
  }
}

/// sum + 0 * x, for two elements each: NaN where x is not finite.
template <Element element>
__device__ __forceinline__ cuda::std::uint32_t plus_zero_times(cuda::std::uint32_t sum, cuda::std::uint32_t x) {
  if constexpr (element == Element::bf16) {
    return ptx::fma_bf16x2(x, 0U, sum);
  } else {
    return ptx::fma_f16x2(x, 0U, sum);
  }
}

}  // namespace strobe::hopper
