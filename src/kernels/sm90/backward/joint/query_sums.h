// SPDX-License-Identifier: Apache-2.0
// dQ on its way out: every key block adds its part to float32 sums in global memory, which a step afterwards scales and
// converts.
//
// A tile of block_m queries lies there in the order of the accumulators' registers, so that each instruction of a warp
// adds 512 bytes in a row: [part][register / 4][thread of the warpgroup][register % 4].
#pragma once

#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/coordinates.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/ptx/warpgroup.h"

namespace strobe::sm90::backward {

__device__ __forceinline__ void red_add(float* address, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(address), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
}

/// The sums of a head's first block; those of the next block are block_m * head_dim further.
template <Config C>
__device__ __forceinline__ float* query_gradient_sums(const Params& params, int sequence, int head) {
  return params.dq_sum + score::first_block_of<C.rule>(params, sequence, head, C.block_m) * (C.block_m * C.head_dim);
}

template <Config C>
constexpr int kSumsPerPart = C.block_m * C.head_dim / query_gradient_parts(C);

/// The sums of a part of a block of the workspace.
template <Config C>
__device__ __forceinline__ float* part_sums(const Params& params, long long block, int part) {
  return params.dq_sum + (block * query_gradient_parts(C) + part) * kSumsPerPart<C>;
}

/// Where the sums of this thread's registers 0 to 3 lie; those of the next four kWarpgroupSize further.
__device__ __forceinline__ float4* own_sums(float* sums) {
  return reinterpret_cast<float4*>(sums) + threadIdx.x % kWarpgroupSize;
}

/// Reads one part. By way of L2: other multiprocessors wrote it.
template <int n>
__device__ __forceinline__ void load_sums(float* sums, float (&dq)[n]) {
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    const float4 x = __ldcg(own_sums(sums) + j * kWarpgroupSize);
    dq[4 * j] = x.x;
    dq[4 * j + 1] = x.y;
    dq[4 * j + 2] = x.z;
    dq[4 * j + 3] = x.w;
  }
}

/// One part to shared memory, in the same order.
template <int n>
__device__ __forceinline__ void stage_sums(const float (&dq)[n], unsigned char* stage) {
  float4* chunks = own_sums(reinterpret_cast<float*>(stage));
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    chunks[j * kWarpgroupSize] = {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]};
  }
}

/// Adds one part, from the accumulators' registers.
template <int n>
__device__ __forceinline__ void reduce_from_registers(float* sums, const float (&dq)[n]) {
  sums += threadIdx.x % kWarpgroupSize * 4;
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    red_add(sums + j * 4 * kWarpgroupSize, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  }
}

/// Adds one part by way of shared memory: returns when that has been written.
template <int n>
__device__ __forceinline__ void reduce_staged(float* sums, const float (&dq)[n], unsigned char* stage, int barrier) {
  const int thread = threadIdx.x % kWarpgroupSize;
  if (thread == 0) {
    cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>{});
  }
  ptx::bar_sync(barrier, kWarpgroupSize);
  stage_sums(dq, stage);
  cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
  ptx::bar_sync(barrier, kWarpgroupSize);
  if (thread == 0) {
    cuda::ptx::cp_reduce_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, cuda::ptx::op_add, sums,
                                    reinterpret_cast<const float*>(stage), n * kWarpgroupSize * 4);
    cuda::ptx::cp_async_bulk_commit_group();
  }
}

}  // namespace strobe::sm90::backward
