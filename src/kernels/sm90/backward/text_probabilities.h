// SPDX-License-Identifier: Apache-2.0
// P of scores that are a text's, and its derivative.
#pragma once

#include "kernels/score/large_rows.h"
#include "kernels/score/modifiers/text.h"
#include "kernels/sm90/backward/score_block.h"

namespace strobe::sm90::backward {

/// Scores before their text, in natural units: softcap, scale, bias and ALiBi.
template <Config C>
class ScoresBeforeText {
 public:
  __device__ __forceinline__ explicit ScoresBeforeText(const ScoreBlock<C>& block)
      : params_(block.params.score),
        slope_(C.rule.alibi ? block.slope_log2 / kLog2E : 0.0F),
        distance_(block.query() + block.work.diagonal - block.key(0)) {}

  /// Of score i after its softcap.
  __device__ __forceinline__ float of(float capped, int i, float term) const {
    const float score = score::with_scale_and_bias(C.rule, params_, capped, term);
    if constexpr (C.rule.alibi) {
      return score::less_slope(score, slope_,
                               static_cast<float>(distance_ - 8 * (i / 2 % kRowsPerThread) + i / 4 * 8 + i % 2));
    }
    return score;
  }

 private:
  const ScoreParams& params_;
  const float slope_;
  const int distance_;
};

/// visit(i, position, capped, before) for each score: after its softcap, and before its text. `bias.pair(2 j + r)` is
/// asked for in order.
template <Config C, typename Bias, typename Visit>
__device__ __forceinline__ void for_each_score_before_text(const ScoreBlock<C>& block, const Scores<C>& s, Bias& bias,
                                                           const Visit& visit) {
  const ScoresBeforeText<C> before(block);
  const expression::Position first = first_pair(block);
#pragma unroll
  for (int i = 0; i < C.block_m / 2; i += 2) {
    float2 terms{};
    if constexpr (C.rule.bias) {
      terms = bias.pair(i / 2);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float capped = score::softcapped<C.rule>(block.params.score, s[i + c]);
      visit(i + c, pair_of(first, i + c), capped, before.of(capped, i + c, c == 0 ? terms.x : terms.y));
    }
  }
}

/// P, times its derivative, in the place of S; and P as operand `p` where they differ. Hidden scores give 0, whatever
/// they were.
template <Config C, typename Bias>
__device__ __forceinline__ void text_probabilities(const ScoreBlock<C>& block, bool masked, bool has_large_rows,
                                                   Scores<C>& s, Operand<C>& p, const RowNumbers<C>& lse_log2,
                                                   Bias& bias) {
  const expression::Captures& captures = sequence::captures_of<C.rule>(block.params);
  Scores<C> slope;
  for_each_score_before_text<C>(block, s, bias, [&](int i, const expression::Position& at, float capped, float before) {
    s[i] = with_kept<C>(block, i,
                        [&](const auto&... kept) { return score::text_score<C.rule>(captures, at, kept..., before); });
    if constexpr (has_slope(C.rule)) {
      slope[i] = with_kept<C>(
          block, i, [&](const auto&... kept) { return score::text_slope<C.rule>(captures, at, kept..., before); });
      if constexpr (C.rule.softcap) {
        slope[i] *= fmaxf(score::softcap_derivative(capped), 0.0F);
      }
    }
  });
  if (masked) {
    hide<C>(block, s);
  }
  const auto* row_max = reinterpret_cast<const float2*>(block.of_query(block.params.row_max));
#pragma unroll
  for (int j = 0; j < C.block_m / 8; ++j) {
    const float2 lse = row_numbers<C>(lse_log2, j);
    const float2 highest = has_large_rows ? row_max[4 * j] : float2{};
    const auto probability = [&](float score, float maximum, float row_lse) {
      const float exponent = score::large_exponent(score, kLog2E, maximum, row_lse, kProbabilityLog2);
      return ptx::ex2_approx(has_large_rows ? exponent : __fmaf_rn(score, kLog2E, -row_lse));
    };
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int i = 4 * j + 2 * r;
      const float low = probability(s[i], highest.x, lse.x);
      const float high = probability(s[i + 1], highest.y, lse.y);
      if constexpr (has_slope(C.rule)) {
        p[i / 8][i % 8 / 2] = pack<C.rule.element>(low, high);
        s[i] = low == 0.0F ? 0.0F : low * slope[i];
        s[i + 1] = high == 0.0F ? 0.0F : high * slope[i + 1];
      } else {
        s[i] = low;
        s[i + 1] = high;
      }
    }
  }
}

/// Two numbers on their way to dP: P in float16; of a text whose derivative may be large, with it, in bfloat16, which
/// has room for it.
template <Config C>
__device__ __forceinline__ uint32_t to_halves(float low, float high) {
  if constexpr (C.rule.text.wide_slope) {
    return pack<Element::bf16>(low, high);
  } else {
    return ptx::cvt_f16x2(low, high);
  }
}
template <Config C>
__device__ __forceinline__ float2 of_halves(uint32_t halves) {
  if constexpr (C.rule.text.wide_slope) {
    return to_floats<Element::bf16>(halves);
  } else {
    return ptx::cvt_f32x2_from_f16x2(halves);
  }
}

}  // namespace strobe::sm90::backward
