// SPDX-License-Identifier: Apache-2.0
// The bias of a tile of its gradient, which is the same for all who share it, in shared memory.
#pragma once

#include "kernels/sm90/backward/bias_gradient/tile.h"
#include "kernels/sm90/backward/bias_ring.h"
#include "kernels/sm90/backward/scores.h"

namespace strobe::sm90::backward {

/// Fetched once by the thread that needs it. A thread's 16 bytes number i lie at [i][thread].
template <Config C>
class KeptBias {
 public:
  /// `smem`: the warpgroup's.
  __device__ __forceinline__ KeptBias(unsigned char* smem, const Params&)
      : chunks_(reinterpret_cast<uint4*>(smem) + threadIdx.x % kWarpgroupSize) {}

  __device__ __forceinline__ void fetch(const Params& params, const BiasGradientTile& tile, int warpgroup) {
    const BiasParams& bias = params.score.bias;
    const int key = (tile.n * kKeyWarpgroups + warpgroup) * block_n(C) + warpgroup_row(0);
    const int query = tile.m * C.block_m + static_cast<int>(2 * (threadIdx.x % 4));
    const long long first = bias.row(tile.sequence, tile.head, query) + key;
    const auto number = [&](int column, int row) {
      const bool exists = query + column < params.sequences.seqlen_q && key + row < params.sequences.seqlen_k;
      return exists ? score::bias_at<C.rule>(bias, first + column * bias.row_stride + row) : 0.0F;
    };
#pragma unroll 1  // fewer addresses at a time
    for (int chunk = 0; chunk < C.block_m / 4 / kPairs; ++chunk) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int index = chunk * kPairs + i;
        const int column = index / 2 * 8;
        const int row = index % 2 * 8;
        if constexpr (C.rule.bias_float32) {
          words[2 * i] = __float_as_uint(number(column, row));
          words[2 * i + 1] = __float_as_uint(number(column + 1, row));
        } else {
          words[i] = pack<C.rule.element>(number(column, row), number(column + 1, row));
        }
      }
      chunks_[chunk * kWarpgroupSize] = {words[0], words[1], words[2], words[3]};
    }
  }

  __device__ __forceinline__ float2 pair(int index) {
    if (index % kPairs == 0) {
      words_ = chunks_[index / kPairs * kWarpgroupSize];
    }
    const uint32_t words[4] = {words_.x, words_.y, words_.z, words_.w};
    if constexpr (C.rule.bias_float32) {
      return {__uint_as_float(words[index % 2 * 2]), __uint_as_float(words[index % 2 * 2 + 1])};
    } else {
      return to_floats<C.rule.element>(words[index % 4]);
    }
  }

 private:
  static constexpr int kPairs = C.rule.bias_float32 ? 2 : 4;  // in 16 bytes

  uint4* chunks_;
  uint4 words_;
};

/// Brought by TMA.
template <Config C>
  requires(C.bias_stages > 0)
class KeptBias<C> : public SharedBias<C> {
 public:
  __device__ __forceinline__ KeptBias(unsigned char* smem, const Params& params)
      : SharedBias<C>(static_cast<uint32_t>(__cvta_generic_to_shared(smem)), params.bias_boxes.rows == 1) {}
};

}  // namespace strobe::sm90::backward
