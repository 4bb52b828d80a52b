// SPDX-License-Identifier: Apache-2.0
// The scales of a block of 8-bit keys, from global memory to shared memory, by the warp that feeds V.
#pragma once

#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile/block_scales.h"
#include "kernels/sm90/forward/tile/work.h"
#include "kernels/sm90/ptx/warpgroup.h"

namespace strobe::sm90::forward {

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
    for (int i = 0; i < kPerLane; ++i) {
      values_[i] = of_values[min(n * C.block_n + (lane + i * kWarpSize) * C.keys_per_value_scale, last) >> v.shift];
    }
    const int group = min(lane, key_scales(C) - 1);
    keys_ = k.of(work.tile.sequence, head)[min(n * C.block_n + group * kKeysPerScale, last) >> k.shift];
  }

  /// For all lanes to have written when the first goes on.
  __device__ __forceinline__ void store(unsigned char* stage) const {
    auto& scales = *reinterpret_cast<BlockScales<C>*>(stage);
    const int lane = threadIdx.x % kWarpSize;
    unsigned largest = 0;
    unsigned least = ~0U;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      // What is not a number spoils the rows that see its key, and no others: -1 has no logarithm, and 0 times it is 0.
      const int index = lane + i * kWarpSize;
      const float key_scale =
          __shfl_sync(kFullWarp, keys_, min(index * C.keys_per_value_scale / kKeysPerScale, key_scales(C) - 1));
      const bool is_number = key_scale == key_scale && values_[i] == values_[i];
      const float value = fmaxf(values_[i], kSmallestScale);
      const unsigned bits = is_number ? __float_as_uint(value) : kNotANumber;  // ordered as the numbers
      largest = max(largest, bits);
      least = min(least, bits);
      if (index < value_scales(C)) {
        if constexpr (kFoldsValueScales<C>) {
          scales.values[index] = ptx::lg2_approx(__uint_as_float(bits));
          scales.inverses[index] = is_number ? 1.0F / value : 1.0F;
        } else if constexpr (C.keys_per_value_scale > 1) {
          scales.values[index] = __uint_as_float(bits);
        } else {
          scales.values[index] = is_number ? value : -1.0F;
        }
      }
    }
    if (lane < key_scales(C)) {
      scales.keys[lane] = keys_ == keys_ ? keys_ : 1.0F;
    }
    if (kMasksSums<C> && keys_ < kLeastUsualScale) {
      largest = kNotANumber;
    }
    largest = __reduce_max_sync(kFullWarp, largest);
    if constexpr (C.keys_per_value_scale == 1) {
      const bool close =
          __uint_as_float(largest) <= kCloseScales * __uint_as_float(__reduce_min_sync(kFullWarp, least));
      largest = close ? largest : kNotANumber;
    } else {
      largest = largest < kNotANumber ? __float_as_uint(1.0F) : largest;
    }
    if (lane == 0) {
      scales.largest_log2 = ptx::lg2_approx(__uint_as_float(largest));
    }
    __syncwarp();
  }

 private:
  static constexpr int kPerLane = (value_scales(C) + kWarpSize - 1) / kWarpSize;
  static constexpr unsigned kNotANumber = 0x7fffffffU;

  float values_[kPerLane];
  float keys_;  // of the lane-th group
};

}  // namespace strobe::sm90::forward
