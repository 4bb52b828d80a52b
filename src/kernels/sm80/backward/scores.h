// SPDX-License-Identifier: Apache-2.0
// What a thread does to its scores: probabilities, their gradients, masks. Tiles are transposed: rows are keys, columns
// are queries, so that P^T and dS^T are operands where they are.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/apply.h"
#include "kernels/score/large_rows.h"
#include "kernels/score/modifiers/dropout.h"
#include "kernels/sm80/backward/score_block.h"
#include "kernels/sm80/backward/unnormalized.h"

namespace strobe::sm80::backward {

/// The exponents of a thread's scores where a row may have a maximum of its own (score/large_rows.h).
template <Config C>
class LargeExponents {
 public:
  __device__ __forceinline__ explicit LargeExponents(const ScoreBlock<C>& block)
      : params_(block.params.score),
        scale_(score::remaining_scale<C.rule>(params_)),
        slope_(C.rule.alibi ? score::slope_log2(params_.alibi, block.work.sequence, block.head) / scale_ : 0.0F),
        distance_(block.query() + block.work.diagonal - block.key(0)),
        row_max_(block.params.row_max +
                 score::first_block_of<C.rule>(block.params, block.work.sequence, block.head, C.block_m) * C.block_m +
                 block.query()) {}

  /// The exponent of a softcapped score in a column of row r.
  __device__ __forceinline__ float of(float score, int r, int column, float term, float lse_log2) const {
    return score::large_exponent<C.rule>(params_, score, term, slope_, distance_ - 8 * r + column, scale_,
                                         row_max_[column], lse_log2, 0.0F);
  }

 private:
  const ScoreParams& params_;
  const float scale_, slope_;
  const int distance_;
  const float* const row_max_;
};

/// The exponents of a thread's scores where no row has a maximum of its own: less LSE and ALiBi's slope times the
/// distance.
template <Config C>
class Exponents {
 public:
  __device__ __forceinline__ explicit Exponents(const ScoreBlock<C>& block)
      : scale_log2_(block.params.score.scale_log2) {
    if constexpr (C.rule.alibi) {
      slope_log2_ = score::slope_log2(block.params.score.alibi, block.work.sequence, block.head);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        distance_[r] = static_cast<float>(block.query() + block.work.diagonal - block.key(r));
      }
    }
  }

  __device__ __forceinline__ float of(float score, int r, int column, float term, float lse_log2) const {
    const float distance = distance_[r] + static_cast<float>(column);
    return __fmaf_rn(score, scale_log2_, -score::subtracted<C.rule>(lse_log2, slope_log2_, distance, term));
  }

 private:
  const float scale_log2_;
  float slope_log2_ = 0.0F;
  float distance_[kRowsPerThread] = {};  // of this thread's first column from its key's diagonal
};

/// to_probabilities() of rules whose scores are a text's. `before`: what the text reads. Not `to_product`: the
/// derivative is by the score behind the softcap.
template <bool masked, bool large, bool to_product = true, Config C>
__device__ __forceinline__ void text_probabilities(const ScoreBlock<C>& block, Scores<C>& s, Scores<C>& slope,
                                                   const float* lse_log2, const PartBias<C>& bias, Scores<C>& before) {
  const expression::Captures& captures = sequence::captures_of<C.rule>(block.params);
  const float* const row_max =
      block.params.row_max +
      score::first_block_of<C.rule>(block.params, block.work.sequence, block.head, C.block_m) * C.block_m +
      block.query();
  for_each_text_score<masked>(block, s, bias,
                              [&](int i, int column, bool hidden, const expression::Position& position, float capped,
                                  float score, float after) {
                                before[i] = score;
                                const float lse = lse_log2[column + score::fragment_column()];
                                const float exponent =
                                    large ? score::large_exponent(after, kLog2E, row_max[column], lse, 0.0F)
                                          : __fmaf_rn(after, kLog2E, -lse);
                                s[i] = ptx::ex2_approx(hidden ? kMinusInfinity : exponent);
                                if constexpr (has_slope(C.rule)) {
                                  float derivative = score::text_slope<C.rule>(captures, position, score);
                                  if constexpr (C.rule.softcap && to_product) {
                                    derivative *= fmaxf(score::softcap_derivative(capped), 0.0F);
                                  }
                                  slope[i] = s[i] == 0.0F ? 0.0F : s[i] * derivative;
                                }
                              });
}

/// to_probabilities() of rules without a softmax: S becomes P, and `slope` the derivative.
template <bool masked, Config C>
__device__ __forceinline__ void unnormalized_probabilities(const ScoreBlock<C>& block, Scores<C>& s, Scores<C>& slope,
                                                           const PartBias<C>& bias) {
  const auto& captures = score::captures_of<C.rule>(block.params);
  for_each_unnormalized<masked>(
      block, s, bias,
      [&](int i, bool shown, const expression::Position& position, float capped, float before, float after) {
        float derivative = score::text_slope<C.rule>(captures, position, before);
        if constexpr (C.rule.softcap) {
          derivative *= fmaxf(score::softcap_derivative(capped), 0.0F);
        }
        s[i] = shown ? after : 0.0F;
        slope[i] = shown ? derivative : 0.0F;
      });
}

/// to_probabilities(), by these exponents.
template <bool masked, typename ExponentsOf, Config C>
__device__ __forceinline__ void to_probabilities_by(const ExponentsOf& exponents, const ScoreBlock<C>& block,
                                                    Scores<C>& s, Scores<C>& slope, const float* lse_log2,
                                                    const PartBias<C>& bias) {
  const VisiblePart<C> visible(block);
  const TextPart<C> text(block);
  const score::ProductFactor<C.rule> factor(block.params.score, block.work.k.used);
  const auto probability = [&](int i, int r, int column, float lse) {
    const float x = score::softcapped<C.rule>(block.params.score, factor.times(s[i]));
    float term = 0.0F;
    if constexpr (C.rule.bias) {
      term = bias.terms[i];
    }
    const bool hidden = (masked && visible.hides(r, column)) || text.hides(i);
    s[i] = ptx::ex2_approx(hidden ? kMinusInfinity : exponents.of(x, r, column, term, lse));
    if constexpr (C.rule.softcap) {
      slope[i] = hidden ? 0.0F : s[i] * fmaxf(score::softcap_derivative(x), 0.0F);
    }
  };
#pragma unroll
  for (int j = 0; j < C.part_m / 8; ++j) {
    const float2 lse = reinterpret_cast<const float2*>(lse_log2)[4 * j + threadIdx.x % 4];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      probability(4 * j + 2 * r, r, 8 * j, lse.x);
      probability(4 * j + 2 * r + 1, r, 8 * j + 1, lse.y);
    }
  }
}

/// S becomes P = exp2(S - LSE). With a softcap `slope` becomes its derivative times P, else it is not touched.
/// `lse_log2`: of the block's first query, in shared memory. Hidden scores give 0, whatever they were.
template <bool masked, Config C>
__device__ __forceinline__ void to_probabilities(const ScoreBlock<C>& block, Scores<C>& s, Scores<C>& slope,
                                                 const float* lse_log2, const PartBias<C>& bias) {
  if constexpr (!C.rule.normalized) {
    unnormalized_probabilities<masked>(block, s, slope, bias);
  } else if constexpr (C.rule.text.score) {
    Scores<C> before;
    if (block.has_large_rows) {
      text_probabilities<true, true>(block, s, slope, lse_log2, bias, before);
    } else {
      text_probabilities<masked, false>(block, s, slope, lse_log2, bias, before);
    }
  } else if (block.has_large_rows) {
    to_probabilities_by<true>(LargeExponents<C>(block), block, s, slope, lse_log2, bias);
  } else {
    to_probabilities_by<masked>(Exponents<C>(block), block, s, slope, lse_log2, bias);
  }
}

/// S becomes what dP - D is multiplied with for the gradient of a bias: P, times the derivative by the score that a
/// text reads. Without a softmax, that alone.
template <Config C>
__device__ __forceinline__ void to_bias_factors(const ScoreBlock<C>& block, Scores<C>& s, const float* lse_log2,
                                                const PartBias<C>& bias) {
  [[maybe_unused]] Scores<C> slope;
  if constexpr (!C.rule.normalized) {
    const auto& captures = score::captures_of<C.rule>(block.params);
    for_each_unnormalized<true>(
        block, s, bias, [&](int i, bool shown, const expression::Position& position, float, float before, float) {
          s[i] = shown ? score::text_slope<C.rule>(captures, position, before) : 0.0F;
        });
  } else if constexpr (C.rule.text.score) {
    [[maybe_unused]] Scores<C> before;
    text_probabilities<true, true, false>(block, s, slope, lse_log2, bias, before);
    if constexpr (C.rule.text.slope) {
#pragma unroll
      for (int i = 0; i < C.part_m / 2; ++i) {
        s[i] = slope[i];
      }
    }
  } else {
    to_probabilities<true>(block, s, slope, lse_log2, bias);
  }
}

/// Which of a block's probabilities are dropped.
template <Config C>
class PartDropout {
 public:
  __device__ __forceinline__ explicit PartDropout(const ScoreBlock<C>& block)
      : slices_(score::draw_part_columns<C.rule, kDrawn>(
            score::dropout_key_of(block.params.score.dropout),
            score::head_of_whole(block.params.score.dropout, block.work.sequence, block.head_in_batch()), block.query(),
            block.key(0), block.first())) {}

  /// Ones in the halves of a pair of columns that are dropped: of the eight columns number j, row r.
  __device__ __forceinline__ unsigned of(int j, int r) const { return slices_.dropped(j / 2, j % 2, r); }

 private:
  // Of a narrower part the rest is not used.
  static constexpr int kDrawn = C.part_m < kDropoutColumns ? kDropoutColumns : C.part_m;
  score::DropoutSlices<kDrawn> slices_;
};

/// Dropout of rules that have none.
template <Config C>
  requires(!C.rule.dropout)
class PartDropout<C> {
 public:
  __device__ __forceinline__ explicit PartDropout(const ScoreBlock<C>&) {}
  __device__ __forceinline__ unsigned of(int, int) const { return 0; }
};

/// visit(i, d, dropped) for each pair of neighbouring scores i and i + 1: the D of their queries, under dropout times
/// the probability of being kept, and which are dropped. `d_sum`: of the block's first query, in shared memory.
template <Config C, typename Visit>
__device__ __forceinline__ void for_each_gradient(const ScoreBlock<C>& block, const float* d_sum, const Visit& visit) {
  const PartDropout<C> dropout(block);
  const float keep = C.rule.dropout ? block.params.score.dropout.keep_probability : 1.0F;
#pragma unroll
  for (int j = 0; j < C.part_m / 8; ++j) {
    float2 d = reinterpret_cast<const float2*>(d_sum)[4 * j + threadIdx.x % 4];
    if constexpr (C.rule.dropout) {
      d = {d.x * keep, d.y * keep};
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      visit(4 * j + 2 * r, d, dropout.of(j, r));
    }
  }
}

/// P and dS = P (dP - D) as operands. A hidden pair's P is 0, and its dS is 0 unless dP - D is not finite: see
/// score/exact_gradients.h. Under dropout dS is computed times the probability of being kept.
template <Config C>
__device__ __forceinline__ void to_operands(const ScoreBlock<C>& block, const Scores<C>& s, const Scores<C>& slope,
                                            const Scores<C>& dp, const float* d_sum, Operand<C>& p, Operand<C>& ds) {
  for_each_gradient<C>(block, d_sum, [&](int i, const float2& d, unsigned dropped) {
    const float2 gradient = score::without_dropped(&dp[i], dropped);
    const float* const factor = has_slope(C.rule) ? &slope[i] : &s[i];
    if constexpr (C.rule.element == Element::fp32) {
      const float2 kept = score::without_dropped(&s[i], dropped);
      p[i] = kept.x;
      p[i + 1] = kept.y;
      ds[i] = factor[0] * (gradient.x - d.x);
      ds[i + 1] = factor[1] * (gradient.y - d.y);
    } else {
      p[i / 8][i % 8 / 2] = pack<C.rule.element>(s[i], s[i + 1]) & ~dropped;
      ds[i / 8][i % 8 / 2] = pack<C.rule.element>(factor[0] * (gradient.x - d.x), factor[1] * (gradient.y - d.y));
    }
  });
}

}  // namespace strobe::sm80::backward
