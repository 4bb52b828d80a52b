// SPDX-License-Identifier: Apache-2.0
// 8-bit operands: from sums of products of elements to probabilities as 8-bit operands.
//
// A block's probabilities are rounded relative to their row's largest, V's scales included. Its reference is the
// largest score times the largest V scale of the block where V's scales are within a factor of two of each other, at
// most a bit too high, and the largest product otherwise. Sums over a block are exact where operands are integers; sums
// over blocks are float32.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/epilogue.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/forward/smem.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/hopper/tile/fragment.h"
#include "kernels/score/mask.h"
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
template <Config C>
using ProductSum = typename ProductSumOf<C.operands>::Type;

/// What a block of keys brings beside its elements, in shared memory.
template <Config C>
struct BlockScales {
  float values[value_scales(C)];  // kFoldsValueScales: their log2
  float keys[key_scales(C)];
  float inverses[key_scales(C)];  // kFoldsValueScales: of the values, 1 where they are not numbers
  float largest_log2;  // of V's scales; NaN where they are further apart than kCloseScales, or one is not a number
};

// V's scales that are no further apart than this factor have one reference.
constexpr float kCloseScales = 4.0F;

// The smallest scale: a product with it is not worth telling from zero.
constexpr float kSmallestScale = 0x1p-80F;

/// The float whose unit in the last place is 1: added to a float below 2^23, it leaves that float, rounded to nearest
/// even, in the lowest bits.
constexpr float kRoundToInteger = 8388608.0F;

/// log2 of what a probability of 1 is rounded as: 255, or in e4m3 16, so that it may grow to 448 before the row's
/// reference is raised.
template <Config C>
constexpr float kLevelsLog2 = C.operands == Operands::int8 ? 7.99435343685886F : 4.0F;
constexpr float kFloatSlack = 4.8F;  // log2 of 448 / 16, less than that

/// Whether a group of keys shares a V scale that is part of its exponents; a block of integers' joins P V's sums
/// instead.
template <Config C>
constexpr bool kFoldsValueScales = !sums_by_block(C) && C.keys_per_value_scale > 1;

template <Config C>
class EightBitSoftmax : public score::OnlineSoftmax<C.rule, C.block_n> {
 public:
  using Base = score::OnlineSoftmax<C.rule, C.block_n>;
  using Mask = score::Mask<C.rule, C.block_n>;
  using Sum = ProductSum<C>;
  using Sums = Sum[C.block_n / 2];
  using Operand = uint32_t[C.block_n / kOperandKeys][4];

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

  /// What a block's exponents are relative to.
  struct Reference {
    bool scaled;                // whether the numbers that take the sums' place are exponents of 2 already
    float own[kRowsPerThread];  // log2 of the row's largest product; -inf: the row sees no key
  };

  /// Block n's sums of products -> numbers, and their reference. True if what was accumulated before must be multiplied
  /// by `correction`: the same answer in all threads of a warp.
  template <typename MaskOf>
  __device__ __forceinline__ bool measure(Reference& reference, Sums& sums, const BlockScales<C>& scales,
                                          const MaskOf& mask_of, bool masked, int n) {
    const float close = scales.largest_log2;
    reference.scaled = C.rule.scale_first || close != close || masked;
    if (!reference.scaled) {
      read_all(sums, reference.own, scales, close);
    } else {
      read_visible(sums, reference.own, scales, close, mask_of, masked, n);
    }
    if constexpr (!sums_by_block(C)) {
      if (!__any_sync(kFullWarp, passes(reference.own))) {
        return false;
      }
      if (!reference.scaled) {
        read_all<true>(sums, reference.own, scales, close);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      float& own = reference.own[r];
      own = ptx::max_nan(own, __shfl_xor_sync(kFullWarp, own, 1));
      own = ptx::max_nan(own, __shfl_xor_sync(kFullWarp, own, 2));
    }
    return raise(reference.own);
  }

  /// P as operand from what measure() left, which is spent; sets block_factor.
  __device__ __forceinline__ void exponentiate(Operand& p, const Sums& sums, const Reference& reference,
                                               const BlockScales<C>& scales) {
    float shift[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float relative_to = sums_by_block(C) ? reference.own[r] : this->max_log2[r];
      const bool hidden = relative_to == kMinusInfinity;
      const float own = hidden ? 0.0F : relative_to;
      if constexpr (sums_by_block(C)) {
        // Not to round above the levels: an exponent is off by its rounding, and the reference by two.
        shift[r] = __fmaf_rn(fabsf(own), -0x1p-21F, kLevelsLog2<C> - own);
        block_factor[r] = hidden ? 0.0F : ptx::ex2_approx(-shift[r] - this->max_log2[r]);
      } else {
        shift[r] = kLevelsLog2<C> - own;
      }
    }
    float part[kRowsPerThread] = {};
#pragma unroll
    for (int i = 0; i < C.block_n / kOperandKeys; ++i) {
      asm volatile("" ::: "memory");  // scales are not to be fetched long before they are used: there are no registers
      float factor[kRowsPerThread];
      float moved[kRowsPerThread];
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        factor[r] = reference.scaled ? 1.0F : query_scale[r] * scales.keys[i];
        moved[r] = kFoldsValueScales<C> && !reference.scaled ? shift[r] + scales.values[i] : shift[r];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = 4 * i + 2 * half;  // the first of two eights
        const float2 low = value_scales_of(scales, j);
        const float2 high = value_scales_of(scales, j + 1);
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          const auto probability = [&](int column) {
            const float x = number(sums[4 * j + 2 * r + column]);
            return ptx::ex2_approx(__fmaf_rn(x, factor[r], moved[r]));
          };
          const float four[] = {probability(0), probability(1), probability(4), probability(5)};
          part[r] = part[r] + four[0] + four[1] + four[2] + four[3];
          p[i][2 * half + r] = rounded(four, low, high);
        }
      }
      if constexpr (kFoldsValueScales<C>) {
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          this->sum[r] = __fmaf_rn(part[r], scales.inverses[i], this->sum[r]);
          part[r] = 0.0F;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      if constexpr (sums_by_block(C)) {
        this->sum[r] = __fmaf_rn(part[r], block_factor[r], this->sum[r]);
        if constexpr (C.keys_per_value_scale > 1) {
          block_factor[r] = reference.own[r] == kMinusInfinity ? 0.0F : block_factor[r] * scales.values[0];
        }
      } else if constexpr (!kFoldsValueScales<C>) {
        this->sum[r] += part[r];
      }
    }
  }

  /// For what was accumulated by the block before, where measure() says so.
  __device__ __forceinline__ void rescale_block() {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      block_factor[r] *= this->correction[r];
    }
  }

  /// As the base's, with the shift of the scores out of it.
  __device__ __forceinline__ void finish(const Params& params, const TileWork& work, int warpgroup) {
    Base::finish();
    if constexpr (!sums_by_block(C)) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        this->max_log2[r] -= kLevelsLog2<C>;
      }
    }
    const ScaleParams& shift = params.eight_bit.q_shift;
    if (shift.data != nullptr) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const int row = min(work.row_of(warpgroup) + warpgroup_row(r), work.q.used - 1);
        this->max_log2[r] += shift.of(work.tile.sequence, work.tile.head)[row] * params.score.scale_log2;
      }
    }
  }

 private:
  /// V's scales of this thread's two columns of the j-th eight.
  __device__ __forceinline__ static float2 value_scales_of(const BlockScales<C>& scales, int j) {
    if constexpr (C.keys_per_value_scale > 1) {
      return {1.0F, 1.0F};
    } else {
      return *reinterpret_cast<const float2*>(&scales.values[8 * j + fragment_column()]);
    }
  }

  // A sum of integers makes way for the number that it is.
  __device__ __forceinline__ static float number(float bits) { return bits; }
  __device__ __forceinline__ static float number(int bits) { return __int_as_float(bits); }
  __device__ __forceinline__ static void replace(float& sum, float x) { sum = x; }
  __device__ __forceinline__ static void replace(int& sum, float x) { sum = __float_as_int(x); }

  /// Of a block that all rows see; `own` is this thread's part. Without `exact` e4m3's is not below 0.
  template <bool exact = sums_by_block(C)>
  __device__ __forceinline__ void read_all(Sums& sums, float (&own)[kRowsPerThread], const BlockScales<C>& scales,
                                           float close) const {
    constexpr int kEights = C.block_n / 8 / key_scales(C);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      own[r] = kMinusInfinity;
    }
#pragma unroll
    for (int group = 0; group < key_scales(C); ++group) {
      // Volatile: one at a time, as there are no registers for all.
      float largest[kRowsPerThread];
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        largest[r] = static_cast<float>(largest_of<kEights, exact>(sums, group * kEights, r));
      }
      const float key_scale = *static_cast<const volatile float*>(&scales.keys[group]);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const float factor = query_scale[r] * key_scale;
        own[r] = ptx::max_nan(
            own[r], kFoldsValueScales<C> ? __fmaf_rn(largest[r], factor, scales.values[group]) : largest[r] * factor);
      }
    }
    if constexpr (!kFoldsValueScales<C>) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        own[r] += close;
      }
    }
    if constexpr (C.operands == Operands::int8) {
#pragma unroll
      for (int i = 0; i < C.block_n / 2; ++i) {
        replace(sums[i], static_cast<float>(sums[i]));
      }
    }
  }

  /// The largest sum of row r in `eights` of the block from the first-th on.
  template <int eights, bool exact>
  __device__ __forceinline__ static Sum largest_of(const Sums& sums, int first, int r) {
    const Sum* s = &sums[4 * first + 2 * r];
    if constexpr (C.operands == Operands::int8) {
      int largest = max(s[0], s[1]);
#pragma unroll
      for (int j = 1; j < eights; ++j) {
        largest = __vimax3_s32(largest, s[4 * j], s[4 * j + 1]);
      }
      return largest;
    } else if constexpr (!exact) {  // positive floats order as integers do, above all negative ones
      int largest = 0;
#pragma unroll
      for (int j = 0; j < eights; ++j) {
        largest = __vimax3_s32(largest, __float_as_int(s[4 * j]), __float_as_int(s[4 * j + 1]));
      }
      return __int_as_float(largest);
    } else {
      float largest[2] = {s[0], s[1]};
#pragma unroll
      for (int j = 1; j < eights; ++j) {
        largest[0] = fmaxf(largest[0], s[4 * j]);
        largest[1] = fmaxf(largest[1], s[4 * j + 1]);
      }
      return fmaxf(largest[0], largest[1]);
    }
  }

  /// Of a block that may be masked, or whose V scales are of any size.
  template <typename MaskOf>
  __device__ __forceinline__ void read_visible(Sums& sums, float (&own)[kRowsPerThread], const BlockScales<C>& scales,
                                               float close, const MaskOf& mask_of, bool masked, int n) const {
    float x[C.block_n / 2];
#pragma unroll
    for (int i = 0; i < C.block_n / 2; ++i) {
      const int group = i / (kKeysPerScale / 2);
      const float factor = query_scale[i / 2 % kRowsPerThread] * scales.keys[group];
      x[i] = __fmaf_rn(static_cast<float>(sums[i]), factor, kFoldsValueScales<C> ? scales.values[group] : 0.0F);
    }
    if (masked) {
      mask_of().apply(x, n);
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      own[r] = kMinusInfinity;
    }
#pragma unroll
    for (int j = 0; j < C.block_n / 8; ++j) {
      float2 values_log2{};  // where they are not part of the exponents
      if constexpr (!kFoldsValueScales<C>) {
        values_log2 = {close, close};
      }
      if constexpr (C.keys_per_value_scale == 1) {
        if (close != close) {
          const float2 values = value_scales_of(scales, j);
          values_log2 = {ptx::lg2_approx(values.x), ptx::lg2_approx(values.y)};
        }
      }
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        own[r] = ptx::max_nan(own[r], raised(x[4 * j + 2 * r], values_log2.x));
        own[r] = ptx::max_nan(own[r], raised(x[4 * j + 2 * r + 1], values_log2.y));
      }
    }
#pragma unroll
    for (int i = 0; i < C.block_n / 2; ++i) {
      replace(sums[i], x[i]);
    }
  }

  /// Hidden keys stay so, whatever their scale.
  __device__ __forceinline__ static float raised(float exponent, float by) {
    return exponent == kMinusInfinity ? exponent : exponent + by;
  }

  /// Whether a row's exponents pass the reference by more than may be. What is not a number does.
  __device__ __forceinline__ bool passes(const float (&own)[kRowsPerThread]) const {
    constexpr float kMost = sums_by_block(C) ? Base::kSlack : kFloatSlack;
    return !(own[0] <= this->max_log2[0] + kMost && own[1] <= this->max_log2[1] + kMost);
  }

  /// The reference of what is summed over blocks follows the largest exponents lazily, as the base's.
  __device__ __forceinline__ bool raise(const float (&own)[kRowsPerThread]) {
    const bool grew = __any_sync(kFullWarp, passes(own));
    if (grew) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const float raised = ptx::max_nan(this->max_log2[r], own[r]);
        this->correction[r] = raised == kMinusInfinity ? 1.0F : ptx::ex2_approx(this->max_log2[r] - raised);
        this->max_log2[r] = raised;
        this->sum[r] *= this->correction[r];
      }
    }
    return grew;
  }

  /// Four neighbours of the A operand: the accumulator's columns, in the order that V's keys have.
  __device__ __forceinline__ static uint32_t rounded(const float (&p)[4], float2 low, float2 high) {
    if constexpr (C.operands == Operands::int8) {
      const uint32_t first = __byte_perm(integer(p[0], low.x), integer(p[1], low.y), 0x0040);
      const uint32_t second = __byte_perm(integer(p[2], high.x), integer(p[3], high.y), 0x0040);
      return __byte_perm(first, second, 0x5410);
    } else if constexpr (C.keys_per_value_scale > 1) {
      return ptx::cvt_e4m3x4(p[0], p[1], p[2], p[3]);
    } else {
      return ptx::cvt_e4m3x4(p[0] * low.x, p[1] * low.y, p[2] * high.x, p[3] * high.y);
    }
  }

  __device__ __forceinline__ static uint32_t integer(float p, float value_scale) {
    return __float_as_uint(C.keys_per_value_scale > 1 ? p + kRoundToInteger
                                                      : __fmaf_rn(p, value_scale, kRoundToInteger));
  }
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
