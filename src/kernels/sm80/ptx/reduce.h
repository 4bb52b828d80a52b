// SPDX-License-Identifier: Apache-2.0
// Sums and flags in global memory that several CTAs share, which cuda::ptx lacks for sm_80. One instruction a function.
#pragma once

namespace strobe::ptx {

__device__ __forceinline__ void red_add(float* address, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;\n" ::"l"(address), "f"(x) : "memory");
}

#if __CUDA_ARCH__ >= 900
/// Adds to four neighbours, aligned to 16 bytes.
__device__ __forceinline__ void red_add(float* address, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(address), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
}
#endif

__device__ __forceinline__ unsigned ld_acquire(const unsigned* address) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(x) : "l"(address) : "memory");
  return x;
}

__device__ __forceinline__ void st_release(unsigned* address, unsigned x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;\n" ::"l"(address), "r"(x) : "memory");
}

}  // namespace strobe::ptx
