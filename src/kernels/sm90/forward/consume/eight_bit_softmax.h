// SPDX-License-Identifier: Apache-2.0
// 8-bit operands: from sums of products of elements to probabilities as 8-bit operands.
//
// A block's probabilities are rounded relative to their row's largest, V's scales included. Its reference is the
// largest score times the largest V scale of the block where V's scales are within kCloseScales of each other, at
// most two bits too high, and the largest product otherwise. Sums over a block are exact where operands are integers;
// sums over blocks are float32.
#pragma once

#include "kernels/score/softmax.h"
#include "kernels/sm90/forward/consume/eight_bit_scores.h"
#include "kernels/sm90/forward/tile/softmax.h"

namespace strobe::sm90::forward {

template <Config C>
class EightBitSoftmax : public score::OnlineSoftmax<C.rule, C.block_n>, public EightBitScores<C> {
 public:
  using Base = score::OnlineSoftmax<C.rule, C.block_n>;
  using Scores = EightBitScores<C>;
  using Sums = typename Scores::Sums;
  using Operand = uint32_t[C.block_n / kOperandKeys][4];

  float block_factor[kRowsPerThread];  // integers: of this block's P V

  /// What a block's exponents are relative to.
  struct Reference {
    bool scaled;                // whether the numbers that take the sums' place are exponents of 2 already
    float own[kRowsPerThread];  // log2 of the row's largest product; -inf: the row sees no key
  };

  /// Block n's reference; where its sums must be looked at one by one, to be transformed, masked, or for V scales of
  /// any size, exponents of 2 take their place. True if what was accumulated before must be multiplied by `correction`:
  /// the same answer in all threads of a warp. Integers' is exponentiate()'s to give.
  template <typename RulesOf>
  __device__ __forceinline__ bool measure(Reference& reference, Sums& sums, const BlockScales<C>& scales,
                                          const RulesOf& rules_of, bool masked, int n) {
    const float close = scales.largest_log2;
    reference.scaled = kTransforms<C> || C.rule.scale_first || close != close || (masked && !kMasksSums<C>);
    if (reference.scaled || (kMasksSums<C> && masked)) {
      if constexpr (kMasksSums<C>) {
        if (masked) {
          rules_of().mask.apply(sums, n);
        }
      }
      if (reference.scaled) {
        read_visible(sums, reference.own, scales, rules_of, masked, n);
      } else {
        this->template read_all<true>(sums, reference.own, scales);
      }
    } else {
      this->template read_all<sums_by_block(C)>(sums, reference.own, scales);
    }
    if constexpr (sums_by_block(C)) {
      reach_quad(reference.own);
      return false;
    } else {
      if (!__any_sync(kFullWarp, passes(reference.own))) {
        return false;
      }
      if (!reference.scaled) {
        this->template read_all<true>(sums, reference.own, scales);
      }
      reach_quad(reference.own);
      return raise(reference.own);
    }
  }

  /// P as operand from what measure() left; sets block_factor. `when_begun()` is called once, when the exponentials of
  /// kAhead operands have begun and before `p` is written: it may still use the factor of the block before. True as
  /// measure(), of what was accumulated until then.
  template <typename WhenBegun>
  __device__ __forceinline__ bool exponentiate(Operand& p, const Sums& sums, const Reference& reference,
                                               const BlockScales<C>& scales, const WhenBegun& when_begun) {
    float sum[kRowsPerThread];
    if constexpr (sums_by_block(C)) {
      if (reference.scaled) {
        exponentiate_all<true>(p, sums, reference, scales, when_begun, sum);
      } else {
        exponentiate_all<false>(p, sums, reference, scales, when_begun, sum);
      }
      // A vote is a wait: not before the sums are known, on which this depends for that sake.
      const bool grew = raise(reference.own, sum[0] >= 0.0F && sum[1] >= 0.0F);
      join_block(reference, scales, sum);
      return grew;
    } else {
      exponentiate_all<false>(p, sums, reference, scales, when_begun, sum);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        this->sum[r] += sum[r];
      }
      return false;
    }
  }

  /// As the base's, with the shift of the scores out of it.
  __device__ __forceinline__ void finish(const Params& params, const TileWork& work, int warpgroup) {
    Base::finish();
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      if constexpr (!sums_by_block(C)) {
        this->max_log2[r] -= kLevelsLog2<C>;
      }
      if constexpr (!C.rule.softcap) {  // which has seen it
        this->max_log2[r] += shift_of(params, work, warpgroup, r) * params.score.scale_log2;
      }
    }
  }

 private:
  using Scores::query_scale, Scores::shift_of, Scores::value_scales_of, Scores::read_visible, Scores::reach_quad;

  using Exponentials = float[kOperandKeys / 2];

  static constexpr int kAhead = C.exponentials_ahead;

  /// What is added to row r's exponents for their reference to become the levels' logarithm.
  __device__ __forceinline__ float shift_of_row(const Reference& reference, int r) const {
    const float relative_to = sums_by_block(C) ? reference.own[r] : this->max_log2[r];
    const float own = relative_to == kMinusInfinity ? 0.0F : relative_to;
    return sums_by_block(C) ? __fmaf_rn(fabsf(own), -kReferenceRounding, kLevelsLog2<C> - own) : kLevelsLog2<C> - own;
  }

  /// Integers: the block's sums of probabilities join the rows', and its factor is found.
  __device__ __forceinline__ void join_block(const Reference& reference, const BlockScales<C>& scales,
                                             const float (&sum)[kRowsPerThread]) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const bool hidden = reference.own[r] == kMinusInfinity;
      block_factor[r] = hidden ? 0.0F : ptx::ex2_approx(-shift_of_row(reference, r) - this->max_log2[r]);
      this->sum[r] = __fmaf_rn(sum[r], block_factor[r], this->sum[r]);
      if constexpr (C.keys_per_value_scale > 1) {
        block_factor[r] = hidden ? 0.0F : block_factor[r] * scales.values[0];
      }
    }
  }

  /// Sums that are integers must be told from `exponents`.
  template <bool exponents, typename WhenBegun>
  __device__ __forceinline__ void exponentiate_all(Operand& p, const Sums& sums, const Reference& reference,
                                                   const BlockScales<C>& scales, const WhenBegun& when_begun,
                                                   float (&sum)[kRowsPerThread]) const {
    float shift[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      shift[r] = shift_of_row(reference, r);
      sum[r] = 0.0F;
    }
    Exponentials ahead[kAhead > 0 ? kAhead : 1];  // where their sums were
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      begin_operand<exponents>(ahead[i], sums, i, shift, exponents || reference.scaled, scales);
      ptx::tie(ahead[i]);
    }
    when_begun();
#pragma unroll
    for (int i = 0; i < C.block_n / kOperandKeys; ++i) {
      asm volatile("" ::: "memory");  // scales are not to be fetched long before they are used: there are no registers
      if (i < kAhead) {
        end_operand(p[i], ahead[i], i, scales, sum);
      } else {
        Exponentials e;
        begin_operand<exponents>(e, sums, i, shift, exponents || reference.scaled, scales);
        end_operand(p[i], e, i, scales, sum);
      }
    }
  }

  /// The exponentials of operand i.
  template <bool exponents>
  __device__ __forceinline__ void begin_operand(Exponentials& e, const Sums& sums, int i,
                                                const float (&shift)[kRowsPerThread], bool scaled,
                                                const BlockScales<C>& scales) const {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float factor = scaled ? 1.0F : query_scale[r] * scales.keys[i];
      const float value_log2 = kFoldsValueScales<C> ? scales.values[i] : 0.0F;
      const float moved = scaled ? shift[r] : shift[r] + value_log2;
#pragma unroll
      for (int j = 0; j < kOperandKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int at = 4 * j + 2 * r + c;
          e[at] = ptx::ex2_approx(__fmaf_rn(Scores::template number<exponents>(sums[16 * i + at]), factor, moved));
        }
      }
    }
  }

  /// Sums and rounds them.
  __device__ __forceinline__ void end_operand(uint32_t (&p)[4], const Exponentials& e, int i,
                                              const BlockScales<C>& scales, float (&sum)[kRowsPerThread]) const {
    float part[kRowsPerThread] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = 4 * i + 2 * half;  // the first of two eights
      const float2 low = value_scales_of(scales, j);
      const float2 high = value_scales_of(scales, j + 1);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const float* const first = &e[8 * half + 2 * r];
        const float four[] = {first[0], first[1], first[4], first[5]};
        part[r] += (four[0] + four[1]) + (four[2] + four[3]);
        p[2 * half + r] = rounded(four, low, high);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      sum[r] = kFoldsValueScales<C> ? __fmaf_rn(part[r], scales.inverses[i], sum[r]) : sum[r] + part[r];
    }
  }

  /// Whether a row's exponents pass the reference by more than may be. What is not a number does.
  __device__ __forceinline__ bool passes(const float (&own)[kRowsPerThread], bool also = true) const {
    constexpr float kMost = sums_by_block(C) ? Base::kSlack : kProbabilityRoomLog2;
    return !(own[0] <= this->max_log2[0] + kMost && own[1] <= this->max_log2[1] + kMost && also);
  }

  /// The reference of what is summed over blocks follows the largest exponents lazily, as the base's.
  __device__ __forceinline__ bool raise(const float (&own)[kRowsPerThread], bool also = true) {
    const bool grew = __any_sync(kFullWarp, passes(own, also));
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
    if constexpr (C.operands == Element::int8) {
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

}  // namespace strobe::sm90::forward
