// SPDX-License-Identifier: Apache-2.0
// Instructions for the shared memory of another CTA of the cluster, one per function. Addresses are those of the window
// shared::cluster, as map_shared() makes them.
#pragma once

#include <cuda/__ptx/instructions/barrier_cluster.h>
#include <cuda/std/cstdint>

#include "kernels/sm90/ptx/cuda_ptx.h"

namespace strobe::ptx {

using cuda::std::uint32_t;
using cuda::std::uint64_t;

/// Where what lies at `local` in this CTA lies in the CTA of that rank.
__device__ __forceinline__ uint32_t map_shared(const void* local, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n"
      : "=r"(mapped)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(local))), "r"(rank));
  return mapped;
}

/// Stores 16 bytes, and completes as many of a barrier of the same CTA when they are there. Stores that a barrier is
/// told of by a later arrival have to be fenced first, which waits for every load and store under way.
__device__ __forceinline__ void st_async_v4(uint32_t address, const uint4& words, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];\n" ::"r"(
          address),
      "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(barrier)
      : "memory");
}

/// Arrives at a barrier of that CTA: what this warp has read may be overwritten then. It orders no stores.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

}  // namespace strobe::ptx
