// SPDX-License-Identifier: Apache-2.0
// The bias in shared memory, read as accumulator fragments.
#pragma once

#include "kernels/math/element.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

/// A block's bias of 16 bits where this thread's scores want it: four 8x8 matrices at a time.
template <Config C>
struct SharedBias {
  uint32_t row;  // where this lane's row of the first four matrices is
  uint32_t bits[4];

  __device__ __forceinline__ float2 pair(int index) {
    if (index % 4 == 0) {
      ptx::ldmatrix_x4(bits, row + index / 4 * 32);
    }
    return to_floats<C.rule.element>(bits[index % 4]);
  }
};

/// Of 32 bits: pair by pair.
template <Config C>
  requires(C.rule.bias_float32)
struct SharedBias<C> {
  uint32_t row;  // this thread's first pair of its first row
  uint32_t second_row;

  __device__ __forceinline__ float2 pair(int index) {
    return ptx::ld_shared_float2((index % 2 == 0 ? row : second_row) + index / 2 * 32);
  }
};

/// The consumer's side.
template <Config C>
class BiasRing {
 public:
  __device__ __forceinline__ BiasRing(unsigned char* smem, const Params& params, int warpgroup) {
    const auto first = static_cast<uint32_t>(
        __cvta_generic_to_shared(smem + smem_plan(C).bias + warpgroup * C.bias_stages * bias_bytes(C)));
    const uint32_t pitch = params.bias_boxes.rows == 1 ? 0 : bias_row_bytes(C);
    const int lane = threadIdx.x % kWarpSize;
    if constexpr (C.rule.bias_float32) {
      lane_ = first + warpgroup_row(0) * pitch + fragment_column() * 4;
      to_second_row_ = 8 * pitch;
    } else {
      lane_ = first + (warp_of_warpgroup() * kRowsPerWarp + lane % 16) * pitch + lane / 16 * 16;
    }
  }

  __device__ __forceinline__ SharedBias<C> wait_tile(Barriers<C>& barriers, int warpgroup) {
    wait<C>(barriers.bias_full[warpgroup][at_.stage], at_.parity);
    const uint32_t row = lane_ + at_.stage * bias_bytes(C);
    if constexpr (C.rule.bias_float32) {
      return {row, row + to_second_row_};
    } else {
      return {row, {}};
    }
  }

  __device__ __forceinline__ void release(Barriers<C>& barriers, int warpgroup) {
    arrive<C>(barriers.bias_empty[warpgroup][at_.stage]);
    at_.advance();
  }

 private:
  uint32_t lane_;
  uint32_t to_second_row_;
  RingPosition<C.bias_stages> at_;
};

template <Config C>
  requires(C.bias_stages == 0)
class BiasRing<C> {
 public:
  __device__ __forceinline__ BiasRing(unsigned char*, const Params&, int) {}
};

}  // namespace strobe::sm90::forward
