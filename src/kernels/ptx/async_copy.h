// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory that run on while the thread does: cp.async, which cuda::ptx lacks. One
// instruction a function.
#pragma once

#include <cuda/std/cstdint>

namespace strobe::ptx {

using cuda::std::uint32_t;
using cuda::std::uint64_t;

/// Copies `bytes` (16 or 0) of the 16 bytes at `from` and zeros in place of the others, and prefetches the 128 bytes
/// around them to L2. `from` must be an address even where nothing is read.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes));
}

/// Copies like cp_async_16(), without the prefetch.
__device__ __forceinline__ void cp_async_16_alone(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes));
}

/// The line around an address of global memory, to L2.
__device__ __forceinline__ void prefetch_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from));
}

/// All of this thread's copies since the last commit become a group.
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;\n"); }

/// Waits until no more than the `pending` newest groups of this thread's copies are on their way.
template <int pending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

/// One arrival of this thread, which the mbarrier expects, once all of its copies so far are complete.
__device__ __forceinline__ void cp_async_arrive(uint64_t& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(&barrier)))
               : "memory");
}

/// Waits until none of this thread's copies is on its way.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

}  // namespace strobe::ptx
