// SPDX-License-Identifier: Apache-2.0
// Loads from shared memory in the layouts of accumulator fragments. One instruction a function.
#pragma once

#include <cuda/std/cstdint>

namespace strobe::ptx {

using cuda::std::uint32_t;

/// Loads four matrices of 8 x 8 elements: lane l gives the address of row l % 8 of matrix l / 8, and gets of each
/// matrix the elements 2 (l % 4) and the next of row l / 4.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&matrices)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row));
}

/// Loads four matrices of 8 x 8 elements as ldmatrix_x4() does, and transposes each.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&matrices)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row));
}

__device__ __forceinline__ float ld_shared_float(uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(x) : "r"(address));
  return x;
}

/// Loads four neighbouring words.
__device__ __forceinline__ void ld_shared_v4(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address));
}

/// Loads two neighbouring floats.
__device__ __forceinline__ float2 ld_shared_float2(uint32_t address) {
  float2 both;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(both.x), "=f"(both.y) : "r"(address));
  return both;
}

}  // namespace strobe::ptx
