// SPDX-License-Identifier: Apache-2.0
// Where modifiers meet scores. What becomes of Q K^T before masks and softmax, in this order: the factor of its
// sequence, softcap, the scale where it must come first, bias, ALiBi's slope, what a text makes of it; and the same of
// what a backward subtracts of an exponent. Masks follow in mask.h, then softmax.h, then dropout of the probabilities.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/backward_params.h"
#include "kernels/score/fragment.h"
#include "kernels/score/modifiers/alibi.h"
#include "kernels/score/modifiers/bias.h"
#include "kernels/score/modifiers/log_length.h"
#include "kernels/score/modifiers/softcap.h"
#include "kernels/score/modifiers/text.h"
#include "kernels/score/params.h"
#include "kernels/score/rule.h"

namespace strobe::score {

/// The factor of a sequence that has `keys` keys, by which products are multiplied before all else.
__device__ __forceinline__ float product_factor(const ScoreRule& rule, const ScoreParams& params, int keys) {
  return rule.log_length ? log_length_factor(params.log_length, keys) : 1.0F;
}

template <ScoreRule R>
class ProductFactor {
 public:
  __device__ __forceinline__ ProductFactor(const ScoreParams& params, int keys)
      : factor_(product_factor(R, params, keys)) {}
  __device__ __forceinline__ float times(float product) const { return __fmul_rn(product, factor_); }

 private:
  const float factor_;
};

/// That of rules that have none.
template <ScoreRule R>
  requires(!has_product_factor(R))
class ProductFactor<R> {
 public:
  __device__ __forceinline__ ProductFactor(const ScoreParams&, int) {}
  __device__ __forceinline__ static float times(float product) { return product; }
};

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
  return rule.bias            ? __fmaf_rn(score, params.scale, bias)
         : takes_scores(rule) ? score * params.scale  // the text's sum may take it in
         : rule.scale_first   ? __fmul_rn(score, params.scale_log2)
                              : score;
}

/// A single score, to be multiplied with remaining_scale(), by which `slope` is divided. `score`: with the factor of
/// its sequence. `distance`: from the key on the query's diagonal.
__device__ __forceinline__ float transformed(const ScoreRule& rule, const ScoreParams& params, float score, float slope,
                                             int distance, float bias) {
  score = with_scale_and_bias(rule, params, softcapped(rule, params, score), bias);
  return rule.alibi ? less_slope(score, slope, static_cast<float>(distance)) : score;
}

/// The scores of one tile, block_n keys wide: the factor of its sequence, softcap, scale where it must come first, bias
/// and ALiBi. The second row of a thread is `query_step` queries after its first. The bias is fetched from global
/// memory here, or comes another way. `keeps_text`: values of a text's are found once for rows, keys and diagonals,
/// the latter by TextWarps together.
template <ScoreRule R, int block_n, int query_step, bool fetches_bias = R.bias, bool keeps_text = false,
          typename TextWarps = OneWarp>
class Transform {
 public:
  struct Row {
    int center;  // the key on its diagonal
    int batch, head;
    int query;  // one that exists
    int head_kv;
    sequence::FirstPositions first;  // of its sequence
    int queries;                     // that its sequence has
    int place = 0;                   // where values of texts are kept: the query, though it may not exist
  };

  /// `row(r)` is this thread's row r, `keys` how many its sequence has; read where the rule needs them. `text_words`:
  /// shared memory of the TextWarps for what is kept of a text.
  template <typename RowOf, typename Captures>
  __device__ __forceinline__ Transform(const ScoreParams& params, int keys, const RowOf& row, const Captures& captures,
                                       unsigned* text_words = nullptr)
      : params_(params),
        factor_(params, keys),
        bias_(params.bias, keys,
              [&](int r) {
                const Row one = row(r);
                return params.bias.row(one.batch, one.head, one.query);
              }),
        alibi_([&] { return row(0).center; },
               [&](int r) {
                 const Row one = row(r);
                 return slope_log2(params.alibi, one.batch, one.head) / remaining_scale<R>(params);
               }),
        text_(
            captures,
            [&](int r) -> expression::Position {
              const Row one = row(r);
              return {.q = one.first.q + (keeps_text ? one.place : one.query),
                      .k = one.first.k,
                      .head = one.head,
                      .head_kv = one.head_kv,
                      .batch = one.batch,
                      .q_len = one.queries,
                      .k_len = keys};
            },
            text_words) {}

  /// What block n's scores need of a text: to be found while the scores are computed, once the block before is done
  /// with. By all TextWarps.
  __device__ __forceinline__ void find_text(int n) const { text_.find(n * block_n); }

  /// What block n's scores need from global memory: to be fetched long before apply() wants it.
  __device__ __forceinline__ BiasTile<R, block_n, fetches_bias> fetch(int n) const {
    return bias_.template fetch<block_n>(n);
  }

  /// By themselves, what apply() does first.
  __device__ __forceinline__ void apply_factor(float (&s)[block_n / 2]) const {
    for_each_score(s, [&](float& x, int, int) { x = factor_.times(x); });
  }

  /// Scores of block n. `bias.pair(2 j + r)` is asked for in order. Where `all_visible`, one that is not a number may
  /// spoil its neighbours in the row. `relative`: but for what is returned, which is to be added to a row's exponents
  /// (AlibiRows::relative).
  template <bool relative, bool all_visible, typename Bias>
  __device__ __forceinline__ RowNumbers apply_as(float (&s)[block_n / 2], int n, Bias&& bias) const {
    const auto apply_with = [&](const auto& alibi) { apply_in_order<all_visible>(s, n * block_n, bias, alibi); };
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

  /// Scores of keys of block n that a text hides become -inf, whatever they were.
  __device__ __forceinline__ void hide(float (&s)[block_n / 2], int n) const { text_.hide(s, n * block_n); }

 private:
  template <bool all_visible>
  __device__ __forceinline__ void softcap(float& x, float& y) const {
    if constexpr (R.softcap && all_visible && !R.row_invariant && !hides_by_text(R)) {
      softcap_two(params_.softcap, x, y);
    } else {
      x = softcapped<R>(params_, x);
      y = softcapped<R>(params_, y);
    }
  }

  template <bool all_visible, typename Bias, typename Alibi>
  __device__ __forceinline__ void apply_in_order(float (&s)[block_n / 2], int first_key, Bias&& bias,
                                                 const Alibi& alibi) const {
    const int own_key = first_key + fragment_column();
#pragma unroll
    for (int i = 0; i < block_n / 2; i += 2) {
      const int r = i / 2 % kRowsPerThread;
      const int column = i / 4 * 8;
      s[i] = factor_.times(s[i]);
      s[i + 1] = factor_.times(s[i + 1]);
      softcap<all_visible>(s[i], s[i + 1]);
      const float2 terms = bias.pair(i / 2);
      s[i] = alibi(with_scale_and_bias(R, params_, s[i], terms.x), r, column);
      s[i + 1] = alibi(with_scale_and_bias(R, params_, s[i + 1], terms.y), r, column + 1);
      s[i] = text_.score(s[i], r, own_key, column);
      s[i + 1] = text_.score(s[i + 1], r, own_key, column + 1);
    }
  }

  const ScoreParams& params_;
  [[no_unique_address]] ProductFactor<R> factor_;
  BiasRows<R, fetches_bias> bias_;
  AlibiRows<R, block_n, query_step> alibi_;
  [[no_unique_address]] TextRows<R, block_n, keeps_text, TextWarps> text_;
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

/// What dQ and dK of a sequence that has `keys` keys are multiplied by at the end.
template <ScoreRule R>
__device__ __forceinline__ float gradient_scale(const BackwardParams& params, int keys) {
  return ProductFactor<R>(params.score, keys).times(params.scale);
}

}  // namespace strobe::score
