// SPDX-License-Identifier: Apache-2.0
// dQ on its way out: every key block adds its part to float32 sums in global memory, which a step afterwards scales and
// converts.
//
// A tile of block_m queries lies there in the order of the accumulators' registers, so that each instruction of a warp
// adds 512 bytes in a row: [warpgroup][register / 4][thread of the warpgroup][register % 4].
#pragma once

#include <cuda/ptx>

#include "kernels/hopper/backward/config.h"
#include "kernels/hopper/backward/coordinates.h"
#include "kernels/hopper/backward/params.h"
#include "kernels/hopper/ptx/warpgroup.h"

namespace strobe::hopper::backward {

__device__ __forceinline__ void red_add(float* address, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(address), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
}

/// From `element` on, the warpgroup's part of a head's sums, of its first query block; those of the next block are
/// block_m * head_dim further.
template <Config C>
__device__ __forceinline__ float* query_gradient_sums(const Params& params, int sequence, int head, int warpgroup,
                                                      int element) {
  const long long tile = first_block_of<C.rule>(params, sequence, head, C.block_m);
  return params.dq_sum + tile * (C.block_m * C.head_dim) +
         warpgroup * (C.block_m * C.head_dim / C.consumer_warpgroups) + element;
}

template <int n>
__device__ __forceinline__ void reduce_query_gradients(float* sums, const float (&dq)[n]) {
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    red_add(sums + j * 4 * kWarpgroupSize, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  }
}

/// The same through shared memory: `stage` is the warpgroup's. Returns when the stage has been written.
template <int n>
__device__ __forceinline__ void stage_query_gradients(float* sums, const float (&dq)[n], unsigned char* stage,
                                                      int barrier) {
  const int thread = threadIdx.x % kWarpgroupSize;
  if (thread == 0) {
    cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>{});
  }
  ptx::bar_sync(barrier, kWarpgroupSize);
  auto* chunks = reinterpret_cast<float4*>(stage) + thread;
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    chunks[j * kWarpgroupSize] = {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]};
  }
  cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
  ptx::bar_sync(barrier, kWarpgroupSize);
  if (thread == 0) {
    cuda::ptx::cp_reduce_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, cuda::ptx::op_add, sums,
                                    reinterpret_cast<const float*>(stage), n * kWarpgroupSize * 4);
    cuda::ptx::cp_async_bulk_commit_group();
  }
}

}  // namespace strobe::hopper::backward
