// SPDX-License-Identifier: Apache-2.0
// What a thread does to its scores: probabilities, their gradients, and dS on its way to shared memory.
#pragma once

#include "kernels/math/hi_lo.h"
#include "kernels/score/modifiers/dropout.h"
#include "kernels/sm90/backward/score_block.h"
#include "kernels/sm90/backward/text_probabilities.h"
#include "kernels/sm90/backward/unnormalized.h"

namespace strobe::sm90::backward {

/// Products get the factor of their sequence.
template <Config C>
__device__ __forceinline__ void apply_factor(const ScoreBlock<C>& block, Scores<C>& s) {
  const score::ProductFactor<C.rule> factor(block.params.score, block.work.k.used);
#pragma unroll
  for (float& x : s) {
    x = factor.times(x);
  }
}

/// visit(i, x, y) for each pair of neighbouring scores s[i], s[i + 1], softcapped: their exponents of 2, less LSE and
/// ALiBi's slope times the distance, with the bias, of which pair(2 j + r) is asked for in order.
template <Config C, typename Bias, typename Visit>
__device__ __forceinline__ void for_each_exponent(const ScoreBlock<C>& block, const Scores<C>& s,
                                                  const RowNumbers<C>& lse_log2, Bias& bias, const Visit& visit) {
  const float scale_log2 = block.params.score.scale_log2;
  float distance[kRowsPerThread] = {};  // of this thread's first column from its key's diagonal
  if constexpr (C.rule.alibi) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      distance[r] = static_cast<float>(block.query() + block.work.diagonal - block.key(r));
    }
  }
#pragma unroll
  for (int j = 0; j < C.block_m / 8; ++j) {
    const float2 lse = row_numbers<C>(lse_log2, j);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      float2 terms{};
      if constexpr (C.rule.bias) {
        terms = bias.pair(2 * j + r);
      }
      const float first = distance[r] + static_cast<float>(8 * j);
      const float low = score::subtracted<C.rule>(lse.x, block.slope_log2, first, terms.x);
      const float high = score::subtracted<C.rule>(lse.y, block.slope_log2, first + 1.0F, terms.y);
      const int i = 4 * j + 2 * r;
      visit(i, __fmaf_rn(s[i], scale_log2, -low), __fmaf_rn(s[i + 1], scale_log2, -high));
    }
  }
}

/// As for_each_exponent(), where a row may have a maximum of its own (score/large_rows.h).
template <Config C, typename Bias, typename Visit>
__device__ __forceinline__ void for_each_large_exponent(const ScoreBlock<C>& block, const Scores<C>& s,
                                                        const RowNumbers<C>& lse_log2, Bias& bias, const Visit& visit) {
  const ScoreParams& params = block.params.score;
  const float scale = score::remaining_scale<C.rule>(params);
  const float slope = C.rule.alibi ? block.slope_log2 / scale : 0.0F;
  const auto* row_max = reinterpret_cast<const float2*>(block.of_query(block.params.row_max));
  const int distance = block.query() + block.work.diagonal - block.key(0);
#pragma unroll
  for (int j = 0; j < C.block_m / 8; ++j) {
    const float2 lse = row_numbers<C>(lse_log2, j);
    const float2 highest = row_max[4 * j];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      float2 terms{};
      if constexpr (C.rule.bias) {
        terms = bias.pair(2 * j + r);
      }
      const auto exponent = [&](float score, int column, float term, float maximum, float row_lse) {
        return score::large_exponent<C.rule>(params, score, term, slope, distance - 8 * r + column, scale, maximum,
                                             row_lse, kProbabilityLog2);
      };
      const int i = 4 * j + 2 * r;
      visit(i, exponent(s[i], 8 * j, terms.x, highest.x, lse.x),
            exponent(s[i + 1], 8 * j + 1, terms.y, highest.y, lse.y));
    }
  }
}

/// P, in the place of S. `has_large_rows`: some row of the call's may be one, perhaps none of this block.
template <Config C, typename Bias>
__device__ __forceinline__ void plain_probabilities(const ScoreBlock<C>& block, bool masked, bool has_large_rows,
                                                    Scores<C>& s, const RowNumbers<C>& lse_log2, Bias& bias) {
  const auto put = [&](int i, float x, float y) {
    s[i] = x;
    s[i + 1] = y;
  };
  if (has_large_rows) {
    for_each_large_exponent<C>(block, s, lse_log2, bias, put);
  } else {
    for_each_exponent<C>(block, s, lse_log2, bias, put);
  }
  if (masked) {  // behind the scale, which may be negative or zero
    hide<C>(block, s);
  }
#pragma unroll
  for (int i = 0; i < C.block_m / 2; ++i) {
    s[i] = ptx::ex2_approx(s[i]);
  }
}

/// Subtracts what is left of LSE from scores from which the tensor cores subtracted a row's maximum, where the row has
/// one of its own: afterwards they are exponents over the scale.
template <Config C>
__device__ __forceinline__ void subtract_large_lse(const ScoreBlock<C>& block, Scores<C>& s) {
  const float inverse = ptx::rcp_approx(block.params.score.scale_log2);
  const float most = kProbabilityLog2 * inverse;
  const auto* row_max = reinterpret_cast<const float2*>(block.of_query(block.params.row_max));
  const auto* lse_log2 = reinterpret_cast<const float2*>(block.of_query(block.params.lse_log2));
  const auto subtract = [&](int i, float maximum, float lse) {
    const float rest = maximum == 0.0F ? 0.0F : lse * inverse - most;
    const float left = hi_lo_holds_any<C.rule.element> ? 0.0F : maximum;
    s[i] = ptx::min_nan(s[i] - left - rest, most);
    s[i + 2] = ptx::min_nan(s[i + 2] - left - rest, most);
  };
#pragma unroll
  for (int i = 0; i < C.block_m / 2; i += 4) {
    asm volatile("" ::: "memory");  // one after another: else loads take registers that others need
    const float2 highest = row_max[i];
    const float2 lse = lse_log2[i];
    subtract(i, highest.x, lse.x);
    subtract(i + 1, highest.y, lse.y);
  }
}

/// P, in the place of S from which LSE was subtracted.
template <Config C>
__device__ __forceinline__ void difference_probabilities(const ScoreBlock<C>& block, bool masked, bool has_large_rows,
                                                         Scores<C>& s) {
  if (has_large_rows) {
    subtract_large_lse<C>(block, s);
  }
  if (masked) {
    hide<C>(block, s);
  }
#pragma unroll
  for (int i = 0; i < C.block_m / 2; ++i) {
    s[i] = ptx::ex2_approx(s[i] * block.params.score.scale_log2);
  }
}

/// P as operand, and P (1 - tanh^2), the softcap's derivative, in the place of S.
template <Config C, typename Bias>
__device__ __forceinline__ void capped_probabilities(const ScoreBlock<C>& block, bool masked, bool has_large_rows,
                                                     Scores<C>& s, Operand<C>& p, const RowNumbers<C>& lse_log2,
                                                     Bias& bias) {
  const ScoreParams& params = block.params.score;
  if (masked) {
#pragma unroll
    for (int i = 0; i < C.block_m / 2; ++i) {
      s[i] = score::softcapped(params.softcap, s[i]);
    }
    hide<C>(block, s);  // before the exponent, whose scale is positive here
  } else {              // of two keys that a query sees; if one score is not a number, its LSE is not, either
#pragma unroll
    for (int i = 0; i < C.block_m / 2; i += i % 4 == 1 ? 3 : 1) {
      score::softcap_two(params.softcap, s[i], s[i + 2]);
    }
  }
  const auto times_derivative = [](float probability, float tanh) {
    return probability * fmaxf(score::softcap_derivative(tanh), 0.0F);  // of hidden scores 0, not 0 * -inf
  };
  const auto probability = [](float exponent, float tanh) {
    // A bias that lies in shared memory has been copied for hidden keys, too, and may hold anything there.
    const bool hidden = C.rule.bias && C.bias_stages > 0 && tanh == kMinusInfinity;
    return hidden ? 0.0F : ptx::ex2_approx(exponent);
  };
  const auto put = [&](int i, float x, float y) {
    const float low = probability(x, s[i]);
    const float high = probability(y, s[i + 1]);
    p[i / 8][i % 8 / 2] = pack<C.rule.element>(low, high);
    s[i] = times_derivative(low, s[i]);
    s[i + 1] = times_derivative(high, s[i + 1]);
  };
  if (has_large_rows) {
    for_each_large_exponent<C>(block, s, lse_log2, bias, put);
  } else {
    for_each_exponent<C>(block, s, lse_log2, bias, put);
  }
}

/// S becomes what dP - D is multiplied with: P = exp2(S - LSE), and with a softcap its derivative. There P becomes an
/// operand here, else in to_operands().
template <Config C, typename Bias>
__device__ __forceinline__ void probabilities(const ScoreBlock<C>& block, bool masked, bool has_large_rows,
                                              Scores<C>& s, Operand<C>& p, const RowNumbers<C>& lse_log2, Bias& bias) {
  apply_factor<C>(block, s);
  if constexpr (!C.rule.normalized) {
    unnormalized_probabilities<C>(block, masked, s, p, bias);
  } else if constexpr (C.rule.text.score) {
    text_probabilities<C>(block, masked, has_large_rows, s, p, lse_log2, bias);
  } else if constexpr (C.rule.softcap) {
    capped_probabilities<C>(block, masked, has_large_rows, s, p, lse_log2, bias);
  } else {
    plain_probabilities<C>(block, masked, has_large_rows, s, lse_log2, bias);
  }
}

/// dS = P (dP - D) as operand, and P where it is not one yet, sixteen queries at a time, so that scores leave their
/// registers as operands need them. A hidden pair's P is 0, and its dS is 0 unless dP - D is not finite: see
/// exact_rows.h.
template <Config C>
__device__ __forceinline__ void to_operands(Operand<C>& p, Operand<C>& ds, const Scores<C>& s, const Scores<C>& dp,
                                            const RowNumbers<C>& d_sum) {
#pragma unroll
  for (int j = 0; j < C.block_m / 8; ++j) {
    const float2 d = row_numbers<C>(d_sum, j);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int at = 4 * j + 2 * r;
      const float low = s[at];
      const float high = s[at + 1];
      if constexpr (!has_slope(C.rule)) {
        p[j / 2][j % 2 * 2 + r] = pack<C.rule.element>(low, high);
      }
      ds[j / 2][j % 2 * 2 + r] = pack<C.rule.element>(low * (dp[at] - d.x), high * (dp[at + 1] - d.y));
    }
  }
}

/// Which probabilities of `queries` queries of a step are dropped, from the step's query `first` on.
template <int queries, Config C>
__device__ __forceinline__ score::DropoutSlices<queries> draw_dropout(const ScoreBlock<C>& block, int first) {
  const auto thread = static_cast<unsigned>(thread_of_warpgroup());
  const unsigned key = block.key_first + thread / kWarpSize * kRowsPerWarp + thread % kWarpSize / 4;
  const unsigned query = block.query_first + first + 2 * (thread % 4);
  const DropoutParams& dropout = block.params.score.dropout;
  unsigned head = score::head_of_whole(dropout, block.work.sequence, block.head_in_batch);
  asm volatile("" : "+r"(head));  // so that what follows from it does not stay in registers between steps
  return score::draw_part_columns<C.rule, queries>(score::dropout_key_of(dropout), head, query, key, block.first());
}

/// The dropped ones of `queries` queries of a step, from its query `first` on.
template <Config C, int queries, bool draws = C.rule.dropout>
class GradientDropout {
 public:
  __device__ __forceinline__ GradientDropout(const ScoreBlock<C>& block, int first)
      : slices_(draw_dropout<queries>(block, first)) {}

  /// dP of two neighbours, 0 where it is dropped: of the eight queries number j, key r.
  __device__ __forceinline__ float2 kept(const float* dp, int j, int r) const {
    return score::without_dropped(dp, slices_.dropped(j / 2, j % 2, r));
  }

 private:
  score::DropoutSlices<queries> slices_;
};

/// Where there are none, or others know them.
template <Config C, int queries>
class GradientDropout<C, queries, false> {
 public:
  __device__ __forceinline__ GradientDropout(const ScoreBlock<C>&, int) {}
  __device__ __forceinline__ float2 kept(const float* dp, int, int) const { return {dp[0], dp[1]}; }
};

/// Zeros in the place of dropped probabilities.
template <Config C>
__device__ __forceinline__ void drop(Operand<C>& p, const score::DropoutSlices<C.block_m>& slices) {
#pragma unroll
  for (int i = 0; i < C.block_m / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      p[i][j] &= ~slices.dropped(i, j / kRowsPerThread, j % kRowsPerThread);
    }
  }
}

/// D times a factor.
template <Config C>
__device__ __forceinline__ void scale_sums(RowNumbers<C>& d_sum, float factor) {
#pragma unroll
  for (float2& two : d_sum) {
    two = {two.x * factor, two.y * factor};
  }
}

/// dS^T to shared memory: panels of 64 queries x all keys of the tile, swizzled as TMA would. `tile` is the stage.
template <Config C>
__device__ __forceinline__ void store_score_gradients(const Operand<C>& ds, unsigned char* tile, int warpgroup) {
  const int thread = thread_of_warpgroup();
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  // Lanes 8 i to 8 i + 7 name the rows of register i's 8 x 8 block: keys + 8 (i % 2), queries + 8 (i / 2).
  const int key = warpgroup * kRowsPerWarpgroup + warp * 16 + lane % 16;
  const auto first =
      static_cast<uint32_t>(__cvta_generic_to_shared(tile)) + key * kPanelRowBytes + ((lane / 16) ^ (lane % 8)) * 16;
#pragma unroll
  for (int i = 0; i < C.block_m / 16; ++i) {
    ptx::stmatrix_x4((first ^ (i % 4 * 32)) + i / 4 * block_n(C) * kPanelRowBytes, ds[i]);
  }
}

}  // namespace strobe::sm90::backward
