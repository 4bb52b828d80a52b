// SPDX-License-Identifier: Apache-2.0
// A tile's O outside of registers for a while: in shared memory, or where it has no room in global memory. Each thread
// reads back what it wrote itself.
#pragma once

#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/tile/warpgroup.h"

namespace strobe::sm90::forward {

template <Config C>
class KeptOutput {
 public:
  static constexpr int kVectors = C.head_dim_v / 8;  // of four numbers

  __device__ __forceinline__ KeptOutput(const Params& params, unsigned char* smem, int warpgroup) {
    constexpr int kWarpFloats = kRowsPerWarp * C.head_dim_v;
    const int warp = warpgroup * kWarpsPerWarpgroup + warp_of_warpgroup();
    const int own = 4 * (warp * kWarpFloats + 4 * static_cast<int>(threadIdx.x % kWarpSize));  // bytes
    if constexpr (keeps_output_in_smem(C)) {
      first_ = __cvta_generic_to_shared(smem + smem_plan(C).kept) + own;
    } else {
      first_ = reinterpret_cast<unsigned long long>(params.kept +
                                                    static_cast<long long>(blockIdx.x) * block_m(C) * C.head_dim_v) +
               own;
    }
  }

  /// Volatile: else the compiler loads all of it at once, for which there are no registers.
  __device__ __forceinline__ float4 get(int j) const {
    float4 x;
    if constexpr (keeps_output_in_smem(C)) {
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                   : "r"(static_cast<unsigned>(first_) + j * kVectorBytes)
                   : "memory");
    } else {
      asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                   : "l"(first_ + j * kVectorBytes)
                   : "memory");
    }
    return x;
  }

  __device__ __forceinline__ void put(int j, const float4& x) const {
    if constexpr (keeps_output_in_smem(C)) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(static_cast<unsigned>(first_) + j * kVectorBytes),
                   "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                   : "memory");
    } else {
      asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(first_ + j * kVectorBytes), "f"(x.x), "f"(x.y),
                   "f"(x.z), "f"(x.w)
                   : "memory");
    }
  }

  /// All of it, for take().
  __device__ __forceinline__ void put(const float (&o)[C.head_dim_v / 2]) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      put(j, {o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]});
    }
  }

  /// `take(kept, i)` for each number that was put, register i of O: a few vectors at a time, as many as registers are
  /// left for.
  template <typename Take>
  __device__ __forceinline__ void take(const Take& take) const {
    constexpr int kAtOnce = 4;
    static_assert(kVectors % kAtOnce == 0);
#pragma unroll
    for (int begin = 0; begin < kVectors; begin += kAtOnce) {
      float4 kept[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        kept[j] = get(begin + j);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int first = 4 * (begin + j);
        take(kept[j].x, first);
        take(kept[j].y, first + 1);
        take(kept[j].z, first + 2);
        take(kept[j].w, first + 3);
      }
    }
  }

 private:
  static constexpr int kVectorBytes = 16 * kWarpSize;  // of a warp

  unsigned long long first_;  // this thread's first vector
};

}  // namespace strobe::sm90::forward
