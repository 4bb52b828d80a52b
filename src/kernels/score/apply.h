// SPDX-License-Identifier: Apache-2.0
// Where modifiers meet scores. What becomes of Q K^T before masks and softmax, in this order: softcap, the scale where
// it must come first, bias, ALiBi's slope; and the same of what a backward subtracts of an exponent. Masks follow in
// mask.h, then softmax.h, then dropout of the probabilities.
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
        alibi_([&] { return row(0).center; },
               [&](int r) {
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

/// What a backward subtracts of score * scale_log2, `score` being softcapped, to have a probability's exponent: the
/// row's LSE, ALiBi's part and the bias. `distance`: of the query from its key's diagonal.
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

}  // namespace strobe::score
