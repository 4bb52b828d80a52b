// SPDX-License-Identifier: Apache-2.0
// Where modifiers meet scores: what becomes of Q K^T before masks and softmax, in this order: softcap, the scale where
// it must come first, bias, ALiBi's slope.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/fragment.h"
#include "kernels/score/modifiers/alibi.h"
#include "kernels/score/modifiers/bias.h"
#include "kernels/score/modifiers/softcap.h"
#include "kernels/score/params.h"
#include "kernels/score/rule.h"

namespace strobe::score {

/// What scores are still to be multiplied with, to be exponents of 2, when Transform is done with them.
__device__ __forceinline__ float remaining_scale(const ScoreRule& rule, const ScoreParams& params) {
  return rule.bias ? kLog2E : rule.scale_first ? 1.0F : params.scale_log2;
}

template <ScoreRule R>
__device__ __forceinline__ float remaining_scale(const ScoreParams& params) {
  return remaining_scale(R, params);
}

/// A score after its softcap, if the rule has one.
__device__ __forceinline__ float softcapped(const ScoreRule& rule, const ScoreParams& params, float score) {
  return rule.softcap ? softcapped(params.softcap, score) : score;
}

template <ScoreRule R>
__device__ __forceinline__ float softcapped(const ScoreParams& params, float score) {
  return softcapped(R, params, score);
}

/// A softcapped score with the bias, or the scale where that comes first.
__device__ __forceinline__ float with_scale_and_bias(const ScoreRule& rule, const ScoreParams& params, float score,
                                                     float bias) {
  return rule.bias          ? __fmaf_rn(score, params.scale, bias)
         : rule.scale_first ? __fmul_rn(score, params.scale_log2)
                            : score;
}

/// A single score, to be multiplied with remaining_scale(), by which `slope` is divided. `distance`: from the key on
/// the query's diagonal.
__device__ __forceinline__ float transformed(const ScoreRule& rule, const ScoreParams& params, float score, float slope,
                                             int distance, float bias) {
  score = with_scale_and_bias(rule, params, softcapped(rule, params, score), bias);
  return rule.alibi ? less_slope(score, slope, static_cast<float>(distance)) : score;
}

/// The scores of one tile, block_n keys wide: softcap, scale where it must come first, bias and ALiBi. The second row
/// of a thread is `query_step` queries after its first. The bias is fetched from global memory here, or comes another
/// way.
template <ScoreRule R, int block_n, int query_step, bool fetches_bias = R.bias>
class Transform {
 public:
  struct Row {
    int center;  // the key on its diagonal
    int batch, head;
    int query;  // one that exists
  };

  /// `row(r)` is this thread's row r, `keys` how many its bias has; read where the rule needs them.
  template <typename RowOf>
  __device__ __forceinline__ Transform(const ScoreParams& params, int keys, const RowOf& row)
      : params_(params),
        bias_(params.bias, keys,
              [&](int r) {
                const Row one = row(r);
                return params.bias.row(one.batch, one.head, one.query);
              }),
        alibi_(row(0).center, [&](int r) {
          const Row one = row(r);
          return slope_log2(params.alibi, one.batch, one.head) / remaining_scale<R>(params);
        }) {}

  /// What block n's scores need from global memory: to be fetched long before apply() wants it.
  __device__ __forceinline__ BiasTile<R, block_n, fetches_bias> fetch(int n) const {
    return bias_.template fetch<block_n>(n);
  }

  /// Scores of block n. `bias.pair(2 j + r)` is asked for in order. Where `all_visible`, one that is not a number may
  /// spoil its neighbours in the row. `relative`: but for what is returned, which is to be added to a row's exponents
  /// (AlibiRows::relative).
  template <bool relative, bool all_visible, typename Bias>
  __device__ __forceinline__ RowNumbers apply_as(float (&s)[block_n / 2], int n, Bias&& bias) const {
    const auto apply_with = [&](const auto& alibi) { apply_in_order<all_visible>(s, bias, alibi); };
    if constexpr (relative) {
      return alibi_.relative(n, remaining_scale<R>(params_), apply_with);
    } else {
      alibi_.absolute(n, apply_with);
      return {};
    }
  }

  /// All of it.
  template <bool all_visible, typename Bias>
  __device__ __forceinline__ void apply(float (&s)[block_n / 2], int n, Bias&& bias) const {
    apply_as<false, all_visible>(s, n, bias);
  }

 private:
  template <bool all_visible>
  __device__ __forceinline__ void softcap(float& x, float& y) const {
    if constexpr (R.softcap && all_visible && !R.row_invariant) {
      softcap_two(params_.softcap, x, y);
    } else {
      x = softcapped<R>(params_, x);
      y = softcapped<R>(params_, y);
    }
  }

  template <bool all_visible, typename Bias, typename Alibi>
  __device__ __forceinline__ void apply_in_order(float (&s)[block_n / 2], Bias&& bias, const Alibi& alibi) const {
#pragma unroll
    for (int i = 0; i < block_n / 2; i += 2) {
      const int r = i / 2 % kRowsPerThread;
      const int column = i / 4 * 8;
      softcap<all_visible>(s[i], s[i + 1]);
      const float2 terms = bias.pair(i / 2);
      s[i] = alibi(with_scale_and_bias(R, params_, s[i], terms.x), r, column);
      s[i + 1] = alibi(with_scale_and_bias(R, params_, s[i + 1], terms.y), r, column + 1);
    }
  }

  const ScoreParams& params_;
  BiasRows<R, fetches_bias> bias_;
  AlibiRows<R, block_n, query_step> alibi_;
};

/// What a backward subtracts of the exponent of a softcapped score, score * scale_log2: the row's LSE, ALiBi's part and
/// the bias. `distance`: of the query from its key's diagonal.
template <ScoreRule R>
__device__ __forceinline__ float subtracted(float lse_log2, float slope_log2, float distance, float bias) {
  float sum = lse_log2;
  if constexpr (R.alibi) {
    sum = plus_slope(sum, slope_log2, distance);
  }
  if constexpr (R.bias) {
    sum = __fmaf_rn(bias, -kLog2E, sum);
  }
  return sum;
}

/// Scores that are all within a polynomial's reach join the sums of `softmax`.
template <typename Softmax, int n, int count>
__device__ __forceinline__ void add_near(Softmax& softmax, float (&s)[n], const SoftcapTerms<count>& polynomial) {
  const float shifts[kRowsPerThread] = {softmax.shift(0), softmax.shift(1)};
  softmax.add_exponentials(s, [&](float x, int r) { return __fmaf_rn(x, capped_factor(polynomial, x), -shifts[r]); });
}

/// The step of an OnlineSoftmax for scores that are all visible and still to be softcapped (caps_in_softmax). Where a
/// warp's scores are all near 0, a polynomial makes their exponents.
template <typename Softmax, int n>
__device__ __forceinline__ bool capped_step(Softmax& softmax, float (&s)[n], const ScoreParams& params) {
  const auto exponent_of = [&](float x) { return __fmul_rz(softcapped(params.softcap, x), params.scale_log2); };
  if (params.scale_log2 >= Softmax::kMostFused) {  // a cap that leaves them large
    for_each_score(s, [&](float& x, int, int) { x = exponent_of(x); });
    return softmax.step(s, 1.0F);
  }
  float furthest[kRowsPerThread] = {};
  for_each_score(s, [&](const float& x, int r, int) { furthest[r] = fmaxf(furthest[r], fabsf(x)); });
  bool passes = false;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    // tanh(x) is at most x: near the cap the maximum is looked at more often than it need be.
    const float twice = furthest[r] * params.softcap.exponent;
    passes |= twice * params.scale_log2 > (softmax.max_log2[r] + Softmax::kSlack) * (2.0F * kLog2E);
  }
  const bool grew = __any_sync(kFullWarp, passes);
  if (grew) {
    softmax.raise_maximum_by(s, exponent_of);
  }
  const float reach = fmaxf(furthest[0], furthest[1]);
  if (__all_sync(kFullWarp, reach <= params.softcap.near.reach)) {
    add_near(softmax, s, params.softcap.near);
    return grew;
  }
  if (__all_sync(kFullWarp, reach <= params.softcap.far.reach)) {
    add_near(softmax, s, params.softcap.far);
    return grew;
  }
  if (__any_sync(kFullWarp, reach * params.softcap.exponent > kSoftcapMostExponent)) {
    const float most = kSoftcapMostExponent / params.softcap.exponent;
    for_each_score(s, [&](float& x, int, int) { x = ptx::min_nan(x, most); });
  }
  const float offsets[kRowsPerThread] = {params.scale_log2 - softmax.shift(0), params.scale_log2 - softmax.shift(1)};
  softmax.add_pairs(s, [&](float& x, float& y, int r) { capped_exponents(params.softcap, x, y, offsets[r]); });
  return grew;
}

}  // namespace strobe::score
