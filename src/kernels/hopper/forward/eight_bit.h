// SPDX-License-Identifier: Apache-2.0
// 8-bit operands: a block's scores from sums of products of elements, its probabilities as 8-bit operands, and its
// share of O.
//
// A block's probabilities are rounded relative to their row's largest, V's scales included: 2^(s + log2 of V's scale).
// Sums over a block are exact where operands are integers; sums over blocks are float32.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/epilogue.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/forward/smem.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/hopper/tile/fragment.h"
#include "kernels/score/online_softmax.h"

namespace strobe::hopper::forward {

/// What sums of products of operands are.
template <Operands operands>
struct ProductSumOf {
  using Type = float;
};
template <>
struct ProductSumOf<Operands::int8> {
  using Type = int;
};

/// What a block of keys brings beside its elements, in shared memory.
template <Config C>
struct BlockScales {
  float values_log2[C.block_n];
  float value_inverses[C.block_n];
  float keys[C.block_n / kKeysPerScale];
};

/// The float whose unit in the last place is 1: added to a float below 2^23, it leaves that float, rounded to nearest
/// even, in the lowest bits.
constexpr float kRoundToInteger = 8388608.0F;

/// What a probability of 1 is rounded as, and its log2.
template <Config C>
constexpr float kLevelsLog2 = C.operands == Operands::int8 ? 7.99435343685886F : 8.80735492205760F;  // 255, 448

template <Config C>
class EightBitSoftmax : public score::OnlineSoftmax<C.rule, C.block_n> {
 public:
  using Base = score::OnlineSoftmax<C.rule, C.block_n>;
  using Scores = float[C.block_n / 2];
  using Operand = uint32_t[C.block_n / kKeysPerScale][4];

  float query_scale[kRowsPerThread];   // times scale_log2
  float block_factor[kRowsPerThread];  // of this block's P V

  __device__ __forceinline__ void begin(const Params& params, const TileWork& work, int warpgroup) {
    const ScaleParams& q = params.eight_bit.q;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int row = min(work.row_of(warpgroup) + warpgroup_row(r), work.q.used - 1);
      query_scale[r] = q.of(work.tile.sequence, work.tile.head)[row >> q.shift] * params.score.scale_log2;
    }
  }

  /// Sums of products of elements -> exponents of 2, the V scale's included.
  template <typename Sum>
  __device__ __forceinline__ void scale(Scores& s, const Sum (&sums)[C.block_n / 2],
                                        const BlockScales<C>& scales) const {
#pragma unroll
    for (int group = 0; group < C.block_n / kKeysPerScale; ++group) {
      const float key_scale = scales.keys[group];
      const float both[kRowsPerThread] = {query_scale[0] * key_scale, query_scale[1] * key_scale};
#pragma unroll
      for (int j = 4 * group; j < 4 * group + 4; ++j) {
        const float2 values = pair_of(scales.values_log2, j);
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          s[4 * j + 2 * r] = __fmaf_rn(static_cast<float>(sums[4 * j + 2 * r]), both[r], values.x);
          s[4 * j + 2 * r + 1] = __fmaf_rn(static_cast<float>(sums[4 * j + 2 * r + 1]), both[r], values.y);
        }
      }
    }
  }

  /// Exponents, -inf where hidden -> P as operand. True if what was accumulated before must be multiplied by
  /// `correction`: the same answer in all threads of a warp.
  __device__ __forceinline__ bool step(Operand& p, Scores& s, const BlockScales<C>& scales) {
    float own[kRowsPerThread];
    largest(s, own);
    const bool grew = raise(own);
    float raised[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const bool hidden = own[r] == kMinusInfinity;
      raised[r] = kLevelsLog2<C> - (hidden ? 0.0F : own[r]);
      block_factor[r] = hidden ? 0.0F : ptx::ex2_approx(own[r] - this->max_log2[r]);
    }
    asm volatile("" ::: "memory");  // the inverses are not to be fetched before here: they would take 32 registers
    float part[kRowsPerThread] = {};
#pragma unroll
    for (int j = 0; j < C.block_n / 8; ++j) {
      const float2 inverses = pair_of(scales.value_inverses, j);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        float& x = s[4 * j + 2 * r];
        float& y = s[4 * j + 2 * r + 1];
        x = ptx::ex2_approx(x + raised[r]);
        y = ptx::ex2_approx(y + raised[r]);
        part[r] = __fmaf_rn(y, inverses.y, __fmaf_rn(x, inverses.x, part[r]));
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      this->sum[r] = __fmaf_rn(part[r], block_factor[r], this->sum[r]);
    }
    round(p, s);
    return grew;
  }

  /// As the base's, with the levels and the shift of the scores out of it.
  __device__ __forceinline__ void finish(const Params& params, const TileWork& work, int warpgroup) {
    Base::finish();
    const ScaleParams& shift = params.eight_bit.q_shift;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      this->max_log2[r] -= kLevelsLog2<C>;
      if (shift.data != nullptr) {
        const int row = min(work.row_of(warpgroup) + warpgroup_row(r), work.q.used - 1);
        this->max_log2[r] += shift.of(work.tile.sequence, work.tile.head)[row] * params.score.scale_log2;
      }
    }
  }

 private:
  /// What belongs to this thread's two columns of the j-th eight.
  __device__ __forceinline__ static float2 pair_of(const float (&values)[C.block_n], int j) {
    return *reinterpret_cast<const float2*>(&values[8 * j + fragment_column()]);
  }

  /// Of each row, in all threads of its quad.
  __device__ __forceinline__ static void largest(const Scores& s, float (&own)[kRowsPerThread]) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      float highest[2] = {s[2 * r], s[2 * r + 1]};
#pragma unroll
      for (int j = 1; j < C.block_n / 8; ++j) {
        highest[0] = fmaxf(highest[0], s[4 * j + 2 * r]);
        highest[1] = fmaxf(highest[1], s[4 * j + 2 * r + 1]);
      }
      own[r] = fmaxf(highest[0], highest[1]);
      own[r] = fmaxf(own[r], __shfl_xor_sync(kFullWarp, own[r], 1));
      own[r] = fmaxf(own[r], __shfl_xor_sync(kFullWarp, own[r], 2));
    }
  }

  /// The reference of what is summed over blocks follows the largest exponents lazily, as the base's.
  __device__ __forceinline__ bool raise(const float (&own)[kRowsPerThread]) {
    bool passes = false;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      passes |= own[r] > this->max_log2[r] + Base::kSlack;
    }
    const bool grew = __any_sync(kFullWarp, passes);
    if (grew) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const float raised = fmaxf(this->max_log2[r], own[r]);
        this->correction[r] = raised == kMinusInfinity ? 1.0F : ptx::ex2_approx(this->max_log2[r] - raised);
        this->max_log2[r] = raised;
        this->sum[r] *= this->correction[r];
      }
    }
    return grew;
  }

  /// The accumulator's columns are the operand's, four to a register, in the order that V's keys have.
  __device__ __forceinline__ static void round(Operand& p, const Scores& s) {
#pragma unroll
    for (int i = 0; i < C.block_n / 8; ++i) {
      const int tile = i / 4 * 4 + i % 4 / 2 * 2;
      const int r = i % 2;
      const float* low = &s[4 * tile + 2 * r];
      const float* high = &s[4 * (tile + 1) + 2 * r];
      p[i / 4][i % 4] = four(low[0], low[1], high[0], high[1]);
    }
  }

  __device__ __forceinline__ static uint32_t four(float a, float b, float c, float d) {
    if constexpr (C.operands == Operands::int8) {
      const uint32_t low = __byte_perm(integer(a), integer(b), 0x0040);
      const uint32_t high = __byte_perm(integer(c), integer(d), 0x0040);
      return __byte_perm(low, high, 0x5410);
    } else {
      return __byte_perm(ptx::cvt_e4m3x2(a, b), ptx::cvt_e4m3x2(c, d), 0x5410);
    }
  }

  __device__ __forceinline__ static uint32_t integer(float x) { return __float_as_uint(x + kRoundToInteger); }
};

template <Config C>
struct SoftmaxSelector {
  using Type = Softmax<C>;
};
template <Config C>
  requires(eight_bit(C))
struct SoftmaxSelector<C> {
  using Type = EightBitSoftmax<C>;
};

/// What the rows of a tile keep.
template <Config C>
using SoftmaxOf = typename SoftmaxSelector<C>::Type;

}  // namespace strobe::hopper::forward
