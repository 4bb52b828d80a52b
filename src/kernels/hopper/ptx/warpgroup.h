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

/// Waits until at most `pending` of this warpgroup's groups are unfinished, of which none writes `results` any more.
template <int pending, int n>
__device__ __forceinline__ void wgmma_wait_group(float (&results)[n]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
  tie(results);
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

/// Named barrier: arrive without waiting.
__device__ __forceinline__ void bar_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

/// The generic address of this CTA's shared object in the CTA of that rank of the cluster.
template <typename T>
__device__ __forceinline__ T* mapa(T* address, uint32_t rank) {
  uint64_t mapped;
  asm("mapa.u64 %0, %1, %2;\n" : "=l"(mapped) : "l"(address), "r"(rank));
  return reinterpret_cast<T*>(mapped);
}

/// Four 8x8 matrices of 16-bit elements: register i of lane t is two elements of row t / 4 of matrix i, whose row r
/// goes where lane 8 i + r says.
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(matrices[0]),
               "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float lg2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// Two floats rounded to nearest even, `low` in the low half.
__device__ __forceinline__ uint32_t cvt_bf16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ uint32_t cvt_f16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// What the lane of that quad has that stands where this one stands in its own: lane 4 quad + lane % 4.
__device__ __forceinline__ float shfl_quad(float x, int quad) {
  float y;
  // The clamp's upper byte: bits of the lane that are its own.
  asm("shfl.sync.idx.b32 %0, %1, %2, 0x31f, 0xffffffff;\n" : "=f"(y) : "f"(x), "r"(4 * quad));
  return y;
}

/// The two halves of a register, low first.
__device__ __forceinline__ float2 cvt_f32x2_from_f16x2(uint32_t packed) {
  float2 both;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(both.x), "=f"(both.y)
      : "r"(packed));
  return both;
}

}  // namespace strobe::ptx
