// SPDX-License-Identifier: Apache-2.0
// Hopper instructions that cuda::ptx lacks, one per function, under their PTX names.
#pragma once

#include <cuda/std/cstdint>

namespace strobe::ptx {

using cuda::std::uint32_t;
using cuda::std::uint64_t;

/// Orders register accesses before the WGMMAs that follow; needed before the first and after every register write.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

/// The compiler does not know that accumulators arrive at the wait and not at the WGMMA: tied here, they are not read
/// above.
template <int n>
__device__ __forceinline__ void tie(float (&accumulators)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    asm volatile("" : "+f"(accumulators[i])::"memory");
  }
}
template <int n>
__device__ __forceinline__ void tie(int (&accumulators)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    asm volatile("" : "+r"(accumulators[i])::"memory");
  }
}

/// Waits until at most `pending` of this warpgroup's groups are unfinished, of which none writes `results` any more.
template <int pending, typename Sum, int n>
__device__ __forceinline__ void wgmma_wait_group(Sum (&results)[n]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
  tie(results);
}

/// The same, where results are not looked at yet.
template <int pending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
}

template <int registers>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(registers));
}

template <int registers>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(registers));
}

/// Fetches a tensor map before its first use.
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

/// Named barrier: arrive and wait for `threads` arrivals in all.
__device__ __forceinline__ void bar_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

/// Waits at a named barrier, for warps that come to the barrier in different places of the program: bar is
/// barrier.aligned, for one.
__device__ __forceinline__ void barrier_sync(int barrier, int threads) {
  asm volatile("barrier.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

/// bar_sync(), and whether the predicate held for any of the threads.
__device__ __forceinline__ bool bar_red_or(int barrier, int threads, bool predicate) {
  int any;
  asm volatile(
      "{ .reg .pred own, any; setp.ne.s32 own, %3, 0; bar.red.or.pred any, %1, %2, own; selp.s32 %0, 1, 0, any; }\n"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(predicate ? 1 : 0)
      : "memory");
  return any != 0;
}

/// The same for warps that come to the barrier in different places of the program, as barrier_sync().
__device__ __forceinline__ bool barrier_red_or(int barrier, int threads, bool predicate) {
  int any;
  asm volatile(
      "{ .reg .pred own, any; setp.ne.s32 own, %3, 0; barrier.red.or.pred any, %1, %2, own; selp.s32 %0, 1, 0, any; }\n"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(predicate ? 1 : 0)
      : "memory");
  return any != 0;
}

/// Named barrier: arrive without waiting.
__device__ __forceinline__ void bar_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

/// Four 8x8 matrices of 16-bit elements: register i of lane t is two elements of row t / 4 of matrix i, whose row r
/// goes where lane 8 i + r says.
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(matrices[0]),
               "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

/// One lane of the warp, which is converged: for its lane alone the compiler issues TMA without a loop over lanes.
__device__ __forceinline__ bool elect_one() {
  [[maybe_unused]] uint32_t lane;
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred %%elected;\n"
      "elect.sync %0|%%elected, 0xffffffff;\n"
      "selp.u32 %1, 1, 0, %%elected;\n"
      "}\n"
      : "=r"(lane), "=r"(elected));
  return elected != 0;
}

}  // namespace strobe::ptx
