// SPDX-License-Identifier: Apache-2.0
// Rows of gradients that are not finite, once more and from their visible pairs alone.
//
// The products take whole tiles: of a pair that is hidden, P and dS are 0 where everything is finite, but a query that
// is not finite makes D and what its dS multiplies NaN, and 0 * NaN is NaN: it would reach dK and dV of keys that it
// does not see, and likewise a key dQ. Copies zero what lies outside a sequence; rows that only a part of a tile sees
// cannot be zeroed. So where masks hide something, whoever stores a gradient that is not finite computes its row again,
// with plain loops. That is slow and rare; a row that is all NaN is known after one pair.
#pragma once

#include "kernels/score/apply.h"
#include "kernels/score/backward_work.h"
#include "kernels/score/exact_row.h"
#include "kernels/score/large_rows.h"
#include "kernels/score/modifiers/bias.h"
#include "kernels/score/modifiers/block_bits.h"
#include "kernels/score/modifiers/dropout.h"

namespace strobe::score {

/// One row of a gradient while it is summed: columns lane, lane + 32, ... of a warp.
template <Element element, int head_dim>
class ExactGradient {
 public:
  __device__ __forceinline__ explicit ExactGradient(int columns) : columns_(columns) {}

  __device__ __forceinline__ void add(float factor, const unsigned short* row) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = threadIdx.x % kThreadsPerWarp + i * kThreadsPerWarp;
      if (column < columns_) {
        sums_[i] += factor * element_at<element>(row, column);
      }
    }
  }

  /// Whether nothing that is still to come can change it.
  __device__ __forceinline__ bool all_nan() const {
    bool nan = true;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = threadIdx.x % kThreadsPerWarp + i * kThreadsPerWarp;
      nan = nan && (column >= columns_ || isnan(sums_[i]));
    }
    return __all_sync(kFullWarp, nan);
  }

  __device__ __forceinline__ void store(float factor, unsigned short* row) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = threadIdx.x % kThreadsPerWarp + i * kThreadsPerWarp;
      if (column < columns_) {
        set_element<element>(row, column, sums_[i] * factor);
      }
    }
  }

 private:
  static constexpr int kColumns = (head_dim + kThreadsPerWarp - 1) / kThreadsPerWarp;
  const int columns_;
  float sums_[kColumns] = {};
};

/// The dot product of two rows, the same in all lanes of a warp.
template <Element element>
__device__ __forceinline__ float dot_product(const unsigned short* a, const unsigned short* b, int columns) {
  float sum = 0.0F;
#pragma unroll 1
  for (int column = threadIdx.x % kThreadsPerWarp; column < columns; column += kThreadsPerWarp) {
    sum += element_at<element>(a, column) * element_at<element>(b, column);
  }
#pragma unroll
  for (int distance = kThreadsPerWarp / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, distance);
  }
  return sum;
}

/// Pairs of one query head and one key head of a sequence, by one warp.
template <ScoreRule R>
class ExactPairs {
 public:
  __device__ __forceinline__ ExactPairs(const BackwardParams& params, const sequence::Sequence& rows,
                                        const sequence::FirstPositions& first, int sequence, int head, int block_m,
                                        const expression::Captures* captures)
      : params_(params),
        captures_(captures),
        rows_(rows),
        first_(first),
        sequence_(sequence),
        head_(head),
        head_in_batch_(sequence * params.heads + head),
        head_kv_(head / params.heads_per_kv),
        q_batch_(q_batch(params, sequence)),
        k_batch_(k_batch(params, sequence)),
        first_row_(first_block_of<R>(params, sequence, head, block_m) * block_m),
        bias_plane_(params.score.bias.row(sequence, head, 0)),
        slope_(R.alibi ? slope_log2(params.score.alibi, sequence, head) : 0.0F) {}

  __device__ __forceinline__ const unsigned short* query(const Rows& tensor, int query) const {
    return tensor.row(q_batch_, rows_.q.start + query, head_);
  }
  __device__ __forceinline__ const unsigned short* key(const Rows& tensor, int key) const {
    return tensor.row(k_batch_, rows_.k.start + key, head_kv_);
  }

  /// P of a visible pair, 0 where it is dropped.
  __device__ __forceinline__ float probability(int i, int j) const {
    return dropped(i, j) ? 0.0F : pair(i, j).probability;
  }

  /// dS of a visible pair, back through the softcap; under dropout times the probability of being kept.
  __device__ __forceinline__ float score_gradient(int i, int j) const {
    const Pair both = pair(i, j);
    const float dp = dot_product<R.element>(query(params_.d_o, i), key(params_.v, j), params_.head_dim_v);
    const float d = params_.d_sum[first_row_ + i] * (R.dropout ? params_.score.dropout.keep_probability : 1.0F);
    const float ds = both.weight * ((dropped(i, j) ? 0.0F : dp) - d);
    const float capped = R.softcap ? ds * softcap_derivative(both.tanh) : ds;
    return R.text.slope ? capped * both.slope : capped;
  }

  /// Whether a text shows the pair.
  __device__ __forceinline__ bool shown(int i, int j) const {
    if constexpr (R.text.mask) {
      return text_shows<R>(*captures_, position(i, j));
    } else {
      return true;
    }
  }

 private:
  __device__ __forceinline__ bool dropped(int i, int j) const {
    if constexpr (R.dropout) {
      const DropoutParams& dropout = params_.score.dropout;
      const unsigned head = head_of_whole(dropout, sequence_, head_in_batch_);
      return is_dropped(dropout_key_of(dropout), head, first_.q + i, first_.k + j);
    } else {
      return false;
    }
  }

  struct Pair {
    float probability, tanh;
    float slope;   // of a text
    float weight;  // of dP - D
  };

  __device__ __forceinline__ expression::Position position(int i, int j) const {
    return {.q = first_.q + i,
            .k = first_.k + j,
            .head = head_,
            .head_kv = head_kv_,
            .batch = sequence_,
            .q_len = rows_.q.used,
            .k_len = rows_.k.used};
  }

  __device__ __forceinline__ Pair pair(int i, int j) const {
    const float product = dot_product<R.element>(query(params_.q, i), key(params_.k, j), params_.head_dim);
    const float score = ProductFactor<R>(params_.score, rows_.k.used).times(product);
    float term = 0.0F;
    if constexpr (R.bias) {
      term = bias_at<R>(params_.score.bias, bias_plane_ + i * params_.score.bias.row_stride + j);
    }
    const float scale = remaining_scale<R>(params_.score);
    float natural = transformed(R, params_.score, score, slope_ / scale, i + rows_.diagonal - j, term);
    float slope = 1.0F;
    if constexpr (R.text.score) {
      slope = text_slope<R>(*captures_, position(i, j), natural);
      natural = text_score<R>(*captures_, position(i, j), natural);
    }
    if constexpr (!R.normalized) {
      return {probability_of_score(natural), softcapped<R>(params_.score, score), slope,
              natural == kMinusInfinity ? 0.0F : 1.0F};
    }
    const float exponent = large_exponent(natural, scale, params_.row_max[first_row_ + i],
                                          params_.lse_log2[first_row_ + i], -kMinusInfinity);
    const float p = ptx::ex2_approx(exponent);
    return {p, softcapped<R>(params_.score, score), slope, p};
  }

  const BackwardParams& params_;
  const expression::Captures* const captures_;
  const sequence::Sequence& rows_;
  const sequence::FirstPositions first_;
  const int sequence_, head_, head_in_batch_, head_kv_, q_batch_, k_batch_;
  const long long first_row_;  // of the sequence in the workspaces
  const long long bias_plane_;
  const float slope_;
};

/// `columns` columns of dQ of one query, from `first_column` on, by one warp. `params`: the kernel's, here and below.
template <ScoreRule R, int head_dim, typename Params>
__device__ __forceinline__ void recompute_query(const Params& params, const sequence::Sequence& rows, int sequence,
                                                int head, int block_m, int query, unsigned short* stored,
                                                int first_column, int columns) {
  const sequence::FirstPositions first = sequence::first_positions<R>(params, sequence);
  const ExactPairs<R> pairs(params, rows, first, sequence, head, block_m, captures_pointer<R>(params));
  const sequence::KeyRange keys = sequence::visible_keys<R>(params.visibility, rows, query + rows.diagonal, first.k);
  ExactGradient<R.element, head_dim> sum(columns);
#pragma unroll 1
  for (int key = keys.first; key <= keys.last && !sum.all_nan(); ++key) {
    if (shows_pair<R>(params.blocks, sequence, head, query, key) && pairs.shown(query, key)) {
      sum.add(pairs.score_gradient(query, key), pairs.key(params.k, key) + first_column);
    }
  }
  sum.store(gradient_scale<R>(params, rows.k.used), stored);
}

/// Computes again those of rows [first, end) of one head of a sequence whose dQ is not finite: of its columns from
/// `first_column` on the first head_dim, as far as they exist. By one warp.
template <ScoreRule R, int head_dim, typename Params>
__device__ __forceinline__ void repair_queries(const Params& params, const sequence::Sequence& rows, int sequence,
                                               int head, int block_m, int first, int end, int first_column = 0) {
  const int columns = min(head_dim, params.head_dim - first_column);
#pragma unroll 1
  for (int query = first; query < min(end, rows.q.used); ++query) {
    unsigned short* stored = params.dq.row(q_batch(params, sequence), rows.q.start + query, head) + first_column;
    if (!row_is_finite<R.element>(stored, columns)) {
      recompute_query<R, head_dim>(params, rows, sequence, head, block_m, query, stored, first_column, columns);
    }
  }
}

enum class KeySide { k, v };

/// A key head of a sequence.
struct KeyHead {
  int sequence, head_kv;
};

/// dK or dV of one key, by one warp. `head_dim`: of that side, as compiled.
template <ScoreRule R, int head_dim, KeySide side, typename Params>
__device__ __forceinline__ void recompute_key(const Params& params, const sequence::Sequence& rows, const KeyHead& of,
                                              int block_m, int key, unsigned short* stored) {
  constexpr bool kOfK = side == KeySide::k;
  const sequence::FirstPositions first = sequence::first_positions<R>(params, of.sequence);
  const sequence::QueryRange queries = sequence::visible_queries<R>(params.visibility, rows.diagonal, key, first.k);
  const int last = min(queries.last, rows.q.used - 1);
  ExactGradient<R.element, head_dim> sum(kOfK ? params.head_dim : params.head_dim_v);
#pragma unroll 1
  for (int group = 0; group < params.heads_per_kv; ++group) {
    const int head = of.head_kv * params.heads_per_kv + group;
    const ExactPairs<R> pairs(params, rows, first, of.sequence, head, block_m, captures_pointer<R>(params));
#pragma unroll 1
    for (int query = queries.first; query <= last && !sum.all_nan(); ++query) {
      if (!shows_pair<R>(params.blocks, of.sequence, head, query, key) || !pairs.shown(query, key)) {
        continue;
      }
      const float factor = kOfK ? pairs.score_gradient(query, key) : pairs.probability(query, key);
      sum.add(factor, pairs.query(kOfK ? params.q : params.d_o, query));
    }
  }
  const float value_factor = R.dropout ? params.score.dropout.keep_factor : 1.0F;
  sum.store(kOfK ? gradient_scale<R>(params, rows.k.used) : value_factor, stored);
}

/// Computes again those of keys [first, end) of one head of a sequence whose dK or dV is not finite. By one warp.
template <ScoreRule R, int head_dim, KeySide side, typename Params>
__device__ __forceinline__ void repair_keys(const Params& params, const sequence::Sequence& rows, const KeyHead& of,
                                            int block_m, int first, int end) {
#pragma unroll 1
  for (int key = first; key < min(end, rows.k.used); ++key) {
    const Rows& gradient = side == KeySide::k ? params.dk : params.dv;
    unsigned short* stored = gradient.row(k_batch(params, of.sequence), rows.k.start + key, of.head_kv);
    if (!row_is_finite<R.element>(stored, side == KeySide::k ? params.head_dim : params.head_dim_v)) {
      recompute_key<R, head_dim, side>(params, rows, of, block_m, key, stored);
    }
  }
}

}  // namespace strobe::score
