// SPDX-License-Identifier: Apache-2.0
// The scales of a block of 8-bit keys, from global memory to shared memory, by the warp that feeds V.
#pragma once

#include "kernels/hopper/forward/eight_bit.h"

namespace strobe::hopper::forward {

template <Config C>
class ScaleFeeder {
 public:
  /// Fetches those of block n: before the stage that they go to is free.
  __device__ __forceinline__ ScaleFeeder(const Params& params, const TileWork& work, int head, int n) {
    const int lane = threadIdx.x % kWarpSize;
    const ScaleParams& v = params.eight_bit.v;
    const ScaleParams& k = params.eight_bit.k;
    const float* const of_values = v.of(work.tile.sequence, head);
    const int last = work.k.used - 1;  // keys after it are hidden; their scales must be numbers that exist
#pragma unroll
    for (int i = 0; i < kKeysPerLane; ++i) {
      values_[i] = of_values[min(n * C.block_n + lane + i * kWarpSize, last) >> v.shift];
    }
    if (lane < C.block_n / kKeysPerScale) {
      keys_ = k.of(work.tile.sequence, head)[min(n * C.block_n + lane * kKeysPerScale, last) >> k.shift];
    }
  }

  /// For all lanes to have written when the first goes on.
  __device__ __forceinline__ void store(unsigned char* stage) const {
    auto& scales = *reinterpret_cast<BlockScales<C>*>(stage);
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int i = 0; i < kKeysPerLane; ++i) {
      // A scale that is not a number spoils the probability, so its inverse need not: hidden keys leave no trace.
      const bool is_number = values_[i] == values_[i];
      scales.values_log2[lane + i * kWarpSize] = ptx::lg2_approx(values_[i]);
      scales.value_inverses[lane + i * kWarpSize] = is_number ? 1.0F / values_[i] : 1.0F;
    }
    if (lane < C.block_n / kKeysPerScale) {
      scales.keys[lane] = keys_;
    }
    __syncwarp();
  }

 private:
  static constexpr int kKeysPerLane = C.block_n / kWarpSize;

  float values_[kKeysPerLane];
  float keys_ = 1.0F;
};

}  // namespace strobe::hopper::forward
