// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory on which a warp arrives at one place and waits at another, as sm_80 has them: the waits of
// cuda::ptx need sm_90. One instruction a function.
#pragma once

#include <cuda/std/cstdint>

namespace strobe::ptx {

using cuda::std::uint32_t;

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }\n" ::"r"(barrier) : "memory");
}

/// Arrives when all copies that this thread has started so far are there.
__device__ __forceinline__ void cp_async_mbarrier_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}

/// Whether the phase of that parity is complete.
__device__ __forceinline__ bool mbarrier_test_wait(uint32_t barrier, uint32_t parity) {
  uint32_t complete;
  asm volatile("{ .reg .pred done; mbarrier.test_wait.parity.shared.b64 done, [%1], %2; selp.u32 %0, 1, 0, done; }\n"
               : "=r"(complete)
               : "r"(barrier), "r"(parity)
               : "memory");
  return complete != 0;
}

/// Waits for `threads` threads of the CTA that use the named barrier of this number, 1 to 15.
__device__ __forceinline__ void barrier_cta_sync(int number, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace strobe::ptx
