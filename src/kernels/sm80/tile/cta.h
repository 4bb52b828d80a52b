// SPDX-License-Identifier: Apache-2.0
// A thread's place in its CTA, and the CTA's shared memory.
#pragma once

#include <cuda/std/cstdint>

#include "kernels/score/fragment.h"
#include "kernels/sm80/tile/warp.h"

namespace strobe::sm80 {

using cuda::std::uint32_t;

/// The number of this thread's warp, which the compiler knows to be the same in all lanes.
__device__ __forceinline__ int warp_of_cta() { return __shfl_sync(score::kFullWarp, threadIdx.x / kWarpSize, 0); }
__device__ __forceinline__ int lane_of_warp() { return threadIdx.x % kWarpSize; }

/// The CTA's dynamic shared memory, as smem.h divides it.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char smem[];
  return smem;
}

__device__ __forceinline__ uint32_t shared_address(const unsigned char* memory) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

}  // namespace strobe::sm80
