// SPDX-License-Identifier: Apache-2.0
// The scores of 8-bit operands: sums of products of elements, with the scales of queries and keys.
#pragma once

#include "kernels/math/eight_bit.h"
#include "kernels/score/apply.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile/block_scales.h"
#include "kernels/sm90/forward/tile/work.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

/// What sums of products of operands are.
template <Element operands>
struct ProductSumOf {
  using Type = float;
};
template <>
struct ProductSumOf<Element::int8> {
  using Type = int;
};
template <Config C>
using ProductSum = typename ProductSumOf<C.operands>::Type;

/// The float whose unit in the last place is 1: added to a float below 2^23, it leaves that float, rounded to nearest
/// even, in the lowest bits.
constexpr float kRoundToInteger = 8388608.0F;

/// log2 of what a probability of 1 is rounded as.
template <Config C>
constexpr float kLevelsLog2 = C.operands == Element::int8 ? kInt8LevelsLog2 : kFloat8LevelsLog2;

/// The scores of two rows, block by block: from sums of products to exponents of 2 and their largest.
template <Config C>
class EightBitScores {
 public:
  using Sum = ProductSum<C>;
  using Sums = Sum[C.block_n / 2];

  __device__ __forceinline__ void begin(const Params& params, const TileWork& work, int warpgroup) {
    const ScaleParams& q = params.eight_bit.q;
    const score::ProductFactor<C.rule> factor(params.score, work.k.used);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      query_scale[r] = q.of(work.tile.sequence, work.tile.head)[query_of(work, warpgroup, r) >> q.shift];
      query_scale[r] = factor.times(query_scale[r]);
      if constexpr (!kTransforms<C>) {
        query_scale[r] *= params.score.scale_log2;
      }
      if constexpr (kMasksSums<C>) {  // NaN stays NaN, and what is negative, which no scale may be, becomes NaN
        query_scale[r] =
            query_scale[r] < 0.0F ? __int_as_float(0x7fffffff) : ptx::max_nan(query_scale[r], kLeastUsualScale);
      }
      transformed_shift[r] = C.rule.softcap ? shift_of(params, work, warpgroup, r) : 0.0F;
    }
    remaining_scale = score::remaining_scale<C.rule>(params.score);
  }

 protected:
  float query_scale[kRowsPerThread];        // times scale_log2, unless scores are transformed first
  float transformed_shift[kRowsPerThread];  // transformed scores: what joins them first,
  float remaining_scale;                    // and what they are multiplied with then

  /// The query of this thread's row r, or the last.
  __device__ __forceinline__ static int query_of(const TileWork& work, int warpgroup, int r) {
    return min(work.row_of(warpgroup) + warpgroup_row(r), work.q.used - 1);
  }

  __device__ __forceinline__ static float shift_of(const Params& params, const TileWork& work, int warpgroup, int r) {
    const ScaleParams& shift = params.eight_bit.q_shift;
    const float product =
        shift.data == nullptr ? 0.0F : shift.of(work.tile.sequence, work.tile.head)[query_of(work, warpgroup, r)];
    return score::ProductFactor<C.rule>(params.score, work.k.used).times(product);
  }

  /// V's scales of this thread's two columns of the j-th eight.
  __device__ __forceinline__ static float2 value_scales_of(const BlockScales<C>& scales, int j) {
    if constexpr (C.keys_per_value_scale > 1) {
      return {1.0F, 1.0F};
    } else {
      return *reinterpret_cast<const float2*>(&scales.values[8 * j + fragment_column()]);
    }
  }

  // Exponents take the place of the sums of a special block.
  template <bool exponents>
  __device__ __forceinline__ static float number(Sum sum) {
    if constexpr (exponents && C.operands == Element::int8) {
      return __int_as_float(sum);
    } else {
      return static_cast<float>(sum);
    }
  }
  __device__ __forceinline__ static void replace(float& sum, float x) { sum = x; }
  __device__ __forceinline__ static void replace(int& sum, float x) { sum = __float_as_int(x); }

  /// Of a block that is not special; `own` is this thread's part. Without `exact` e4m3's is not below 0.
  template <bool exact>
  __device__ __forceinline__ void read_all(const Sums& sums, float (&own)[kRowsPerThread],
                                           const BlockScales<C>& scales) const {
    constexpr int kEights = C.block_n / 8 / key_scales(C);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      own[r] = kMinusInfinity;
    }
#pragma unroll
    for (int group = 0; group < key_scales(C); ++group) {
      const float key_scale = scales.keys[group];
      const float value_log2 = kFoldsValueScales<C> ? scales.values[group] : 0.0F;
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const float largest = largest_of<kEights, exact>(sums, group * kEights, r);
        own[r] = kFoldsValueScales<C> ? ptx::max_nan(own[r], __fmaf_rn(largest, query_scale[r] * key_scale, value_log2))
                                      : fmaxf(own[r], largest * key_scale);
      }
    }
    if constexpr (!kFoldsValueScales<C>) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        own[r] = __fmaf_rn(own[r], query_scale[r], scales.largest_log2);
      }
    }
  }

  /// The largest sum of row r in `eights` of the block from the first-th on.
  template <int eights, bool exact>
  __device__ __forceinline__ static float largest_of(const Sums& sums, int first, int r) {
    const Sum* s = &sums[4 * first + 2 * r];
    if constexpr (C.operands == Element::int8) {
      int largest = max(s[0], s[1]);
#pragma unroll
      for (int j = 1; j < eights; ++j) {
        largest = __vimax3_s32(largest, s[4 * j], s[4 * j + 1]);
      }
      return static_cast<float>(largest);
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

  /// Of a special block.
  template <typename RulesOf>
  __device__ __forceinline__ void read_visible(Sums& sums, float (&own)[kRowsPerThread], const BlockScales<C>& scales,
                                               const RulesOf& rules_of, bool masked, int n) const {
    float x[C.block_n / 2];
    exponents_of(x, sums, scales, rules_of, masked, n);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      own[r] = kMinusInfinity;
    }
#pragma unroll
    for (int j = 0; j < C.block_n / 8; ++j) {
      const float close = scales.largest_log2;
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

  /// A block's scores as exponents of 2: transformed and masked.
  template <typename RulesOf>
  __device__ __forceinline__ void exponents_of(float (&x)[C.block_n / 2], const Sums& sums,
                                               const BlockScales<C>& scales, const RulesOf& rules_of, bool masked,
                                               int n) const {
    constexpr int kPerGroup = kKeysPerScale / 2;
#pragma unroll
    for (int i = 0; i < C.block_n / 2; ++i) {
      const int r = i / 2 % kRowsPerThread;
      const float term = kTransforms<C>         ? transformed_shift[r]
                         : kFoldsValueScales<C> ? scales.values[i / kPerGroup]
                                                : 0.0F;
      const auto sum = static_cast<float>(sums[i]);
      x[i] = __fmaf_rn(sum, query_scale[r] * scales.keys[i / kPerGroup], term);
      if (kMasksSums<C> && masked && sum == kMinusInfinity) {
        x[i] = sum;  // whatever the scales
      }
    }
    if constexpr (kTransforms<C>) {
      const auto rules = rules_of();
      rules.transform.template apply<false>(x, n, rules.transform.fetch(n));
#pragma unroll
      for (int i = 0; i < C.block_n / 2; ++i) {
        x[i] = __fmaf_rn(x[i], remaining_scale, kFoldsValueScales<C> ? scales.values[i / kPerGroup] : 0.0F);
      }
      rules.mask.apply(x, n);
    } else if (!kMasksSums<C> && masked) {
      rules_of().mask.apply(x, n);
    }
  }

  /// Hidden keys stay so, whatever their scale.
  __device__ __forceinline__ static float raised(float exponent, float by) {
    return exponent == kMinusInfinity ? exponent : exponent + by;
  }

  /// The largest of the four threads that share a row.
  __device__ __forceinline__ static void reach_quad(float (&own)[kRowsPerThread]) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      own[r] = ptx::max_nan(own[r], __shfl_xor_sync(kFullWarp, own[r], 1));
      own[r] = ptx::max_nan(own[r], __shfl_xor_sync(kFullWarp, own[r], 2));
    }
  }
};

}  // namespace strobe::sm90::forward
