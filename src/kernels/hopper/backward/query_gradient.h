// dQ on its way out: every key block adds its part to float32 sums in global memory, which a step afterwards scales and
// converts.
//
// A tile of block_m queries lies there in the order of the accumulators' registers, so that each instruction of a warp
// adds 512 bytes in a row: [64 rows][register / 4][thread of the warpgroup][register % 4].
#pragma once

#include "kernels/hopper/backward/config.h"
#include "kernels/hopper/backward/params.h"
#include "kernels/hopper/backward/work.h"

namespace strobe::hopper::backward {

__device__ __forceinline__ void red_add(float* address, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(address), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
}

/// This thread's part of a head's sums, of its first query block; those of the next block are block_m * head_dim further.
template <BackwardConfig C>
__device__ __forceinline__ float* query_gradient_sums(const BackwardParams& params, int batch, int head) {
  const long long tile = (static_cast<long long>(batch) * params.heads + head) * params.m_blocks;
  return params.dq_sum + tile * (C.block_m * C.head_dim) + threadIdx.x % kWarpgroupSize * 4;
}

template <int n>
__device__ __forceinline__ void reduce_query_gradients(float* sums, const float (&dq)[n]) {
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    red_add(sums + j * 4 * kWarpgroupSize, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  }
}

}  // namespace strobe::hopper::backward
