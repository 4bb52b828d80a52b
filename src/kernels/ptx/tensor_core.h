// SPDX-License-Identifier: Apache-2.0
// The tensor cores of one warp, and how their operands come from shared memory: mma.sync and ldmatrix, which cuda::ptx
// lacks. One instruction a function.
#pragma once

#include <cuda/std/cstdint>

#include "kernels/math/element.h"
#include "kernels/ptx/shared_memory.h"

namespace strobe::ptx {

using cuda::std::uint32_t;

/// D = A B + C of 16 x 16 by 16 x 8 elements. C and D lie as score/fragment.h says.
template <Element element>
__device__ __forceinline__ void mma_m16n8k16(float* d, const uint32_t (&a)[4], uint32_t b_low, uint32_t b_high,
                                             float c0, float c1, float c2, float c3) {
  if constexpr (element == Element::bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
  }
}

/// D = A B + C of 16 x 8 by 8 x 8 elements in tf32, of whose bits the 13 lowest are not looked at. Rows of A and
/// columns of B are lanes' quads; a lane has in A columns t = lane % 4 and t + 4, and of B these rows.
__device__ __forceinline__ void mma_m16n8k8_tf32(float* d, const uint32_t (&a)[4], uint32_t b_low, uint32_t b_high,
                                                 float c0, float c1, float c2, float c3) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
}

}  // namespace strobe::ptx
