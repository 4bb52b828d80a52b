// SPDX-License-Identifier: Apache-2.0
// Before a backward: the largest score and the sum of exponentials of rows whose LSE is large (score/large_rows.h).
// Sixteen rows at a time, by one CTA. The tensor cores multiply as they do in the backward, sixteen columns after
// another, so that scores have the same bits there. Operands come straight from global memory: such rows are rare.
#pragma once

#include "kernels/auxiliary/prepared_rows.h"
#include "kernels/ptx/grid.h"
#include "kernels/ptx/split_numbers.h"
#include "kernels/ptx/tensor_core.h"
#include "kernels/score/apply.h"
#include "kernels/score/backward_work.h"
#include "kernels/score/modifiers/block_bits.h"
#include "kernels/score/modifiers/sink.h"
#include "kernels/sequence/visible_keys.h"

namespace strobe::auxiliary {

constexpr int kFragmentRows = 16;
constexpr int kLargeRowsWarps = kLargeRowsThreads / 32;

/// The largest score of the keys that a thread, a warp or a CTA has seen, and their sum. Scores are as
/// score::transformed() leaves them.
struct RowMaximum {
  float score = kMinusInfinity;
  float sum = 0.0F;  // of exponentials relative to it

  /// `scale`: by which scores become exponents of 2.
  __device__ __forceinline__ void join(float other, float other_sum, float scale) {
    if (other == kMinusInfinity) {
      return;
    }
    const float highest = fmaxf(score, other);
    const float own = score == kMinusInfinity ? 0.0F : sum * ptx::ex2_approx((score - highest) * scale);
    sum = __fmaf_rn(other_sum, ptx::ex2_approx((other - highest) * scale), own);
    score = highest;
  }
};

/// Sixteen query rows of one head, from `first` on.
struct RowFragment {
  const ScoreRule& rule;
  const BackwardParams& params;
  sequence::Sequence rows;
  int sequence, head, first;
  int first_key;  // the position of the sequence's first key
};

/// What finds sequences.
struct PreparedLengths {
  const SequenceParams& sequences;
  const VisibilityParams& visibility;
  const OffsetParams& offsets;
};

/// A tensor's row as words of two elements or one of float32; null: a row of zeros. Columns count 16 bits.
struct RowWords {
  const unsigned short* row;
  int columns;

  __device__ __forceinline__ unsigned at(int column) const {
    return row != nullptr && column < columns ? *reinterpret_cast<const unsigned*>(row + column) : 0U;
  }
};

/// Scores of the fragment's rows and of eight keys, in the layout of score/fragment.h: `low` and `high` are rows of Q,
/// `key` is a row of K.
template <Element element>
__device__ __forceinline__ void multiply_rows(const RowWords& low, const RowWords& high, const RowWords& key,
                                              float (&s)[4]) {
#pragma unroll
  for (float& x : s) {
    x = 0.0F;
  }
#pragma unroll 1
  for (int column = score::fragment_column(); column < key.columns; column += 16) {
    const unsigned a[4] = {low.at(column), high.at(column), low.at(column + 8), high.at(column + 8)};
    ptx::mma_m16n8k16<element>(s, a, key.at(column), key.at(column + 8), s[0], s[1], s[2], s[3]);
  }
}

/// The same of float32: 16 columns are summed by themselves, and of each pair of factors it is the key that is rounded,
/// as where keys are rows.
template <>
__device__ __forceinline__ void multiply_rows<Element::fp32>(const RowWords& low, const RowWords& high,
                                                             const RowWords& key, float (&s)[4]) {
#pragma unroll
  for (float& x : s) {
    x = 0.0F;
  }
#pragma unroll 1
  for (int column = score::fragment_column(); column < key.columns; column += 32) {
    ptx::SplitNumbers k;
    ptx::SplitNumbers q[2];
    k.round({key.at(column), key.at(column + 8), key.at(column + 16), key.at(column + 24)});
    q[0].cut({low.at(column), high.at(column), low.at(column + 8), high.at(column + 8)});
    q[1].cut({low.at(column + 16), high.at(column + 16), low.at(column + 24), high.at(column + 24)});
    float sum[4];
    ptx::multiply_parts_of_rounded_b(sum, q, k);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = __fadd_rn(s[i], sum[i]);
    }
  }
}

/// What a thread's two rows have seen of the keys that are its warp's, eight at a time.
template <Element element>
__device__ __forceinline__ void look_at_keys(const RowFragment& of, RowMaximum (&own)[score::kRowsPerThread]) {
  constexpr int kKeys = 8;
  const BackwardParams& params = of.params;
  const BiasParams& bias = params.score.bias;
  const float scale = score::remaining_scale(of.rule, params.score);
  const float slope = of.rule.alibi ? score::slope_log2(params.score.alibi, of.sequence, of.head) / scale : 0.0F;
  const auto keys_of = [&](int query) {
    return sequence::visible_keys(of.rule, params.visibility, of.rows, query + of.rows.diagonal, of.first_key);
  };
  const auto query_words = [&](int query) -> RowWords {
    return {query < of.rows.q.used ? params.q.row(score::q_batch(params, of.sequence), of.rows.q.start + query, of.head)
                                   : nullptr,
            params.head_dim * halves_of(element)};
  };
  const float factor = score::product_factor(of.rule, params.score, of.rows.k.used);
  const int last_row = min(of.first + kFragmentRows, of.rows.q.used) - 1;
  const int end = keys_of(last_row).last + 1;
  const int warp = threadIdx.x / score::kThreadsPerWarp;
  const int head_kv = of.head / params.heads_per_kv;
#pragma unroll 1
  for (int first = (keys_of(of.first).first / kKeys + warp) * kKeys; first < end; first += kKeys * kLargeRowsWarps) {
    const int loaded = first + threadIdx.x % score::kThreadsPerWarp / 4;
    float s[4];
    multiply_rows<element>(
        query_words(of.first + score::fragment_row(0)), query_words(of.first + score::fragment_row(1)),
        {loaded < end ? params.k.row(score::k_batch(params, of.sequence), of.rows.k.start + loaded, head_kv) : nullptr,
         params.head_dim * halves_of(element)},
        s);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2;
      const int query = of.first + score::fragment_row(r);
      const int key = first + score::fragment_column() + i % 2;
      const sequence::KeyRange keys = keys_of(query);
      if (query > last_row || key < keys.first || key > keys.last ||
          !score::shows_pair(of.rule, params.blocks, of.sequence, of.head, query, key)) {
        continue;
      }
      const float term = of.rule.bias ? score::bias_at<element>(of.rule.bias_float32, bias,
                                                                bias.row(of.sequence, of.head, query) + key)
                                      : 0.0F;
      own[r].join(score::transformed(of.rule, params.score, has_product_factor(of.rule) ? s[i] * factor : s[i], slope,
                                     query + of.rows.diagonal - key, term),
                  1.0F, scale);
    }
  }
}

/// The maximum of each row, in the thread of the row's number. By the whole CTA.
template <Element element>
__device__ __forceinline__ RowMaximum row_maximum(const RowFragment& of) {
  __shared__ RowMaximum of_warps[kLargeRowsWarps][kFragmentRows];
  const float scale = score::remaining_scale(of.rule, of.params.score);
  RowMaximum own[score::kRowsPerThread];
  look_at_keys<element>(of, own);
#pragma unroll
  for (int r = 0; r < score::kRowsPerThread; ++r) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      const float other = __shfl_xor_sync(score::kFullWarp, own[r].score, distance);
      const float other_sum = __shfl_xor_sync(score::kFullWarp, own[r].sum, distance);
      own[r].join(other, other_sum, scale);
    }
    if (threadIdx.x % 4 == 0) {
      of_warps[threadIdx.x / score::kThreadsPerWarp][score::fragment_row(r)] = own[r];
    }
  }
  __syncthreads();
  RowMaximum row;
  if (threadIdx.x < kFragmentRows) {
    for (const auto& warp : of_warps) {
      row.join(warp[threadIdx.x].score, warp[threadIdx.x].sum, scale);
    }
    if (of.rule.sink) {
      row.join(score::sink_log2(of.params.score.sink, of.head) / scale, 1.0F, scale);
    }
  }
  __syncthreads();
  return row;
}

/// A row's LSE as score::large_exponent() takes it.
struct LargeLse {
  float row_max, lse_log2;
};

/// `lse`: as it was given. One that is not that of these scores, as of a call that has a part of the keys, stays what
/// it is.
__device__ __forceinline__ LargeLse large_lse(const RowMaximum& row, float scale, float lse) {
  constexpr double kUlps = 4.0 / (1 << 23);
  constexpr float kProductOverflows = 2.3e38F;
  constexpr float kFewerThanOne = 0x1p24F;  // whose ulp is 1 at most
  const float sum_log2 = ptx::lg2_approx(row.sum);
  const double own = (static_cast<double>(row.score) * scale + sum_log2) * kLn2;
  const bool overflows = fabsf(lse) >= kProductOverflows && fabs(own) >= kProductOverflows && (lse < 0) == (own < 0);
  if (row.sum > 0.0F && (overflows || fabs(own - lse) <= fabs(own) * kUlps)) {
    return {row.score, sum_log2};
  }
  return fabsf(lse) < kFewerThanOne ? LargeLse{0.0F, lse * kLog2E} : LargeLse{lse * kLog2E / scale, 0.0F};
}

/// Whether dO and the gradient of LSE of a row are all 0: then nothing comes of its P.
template <Element element>
__device__ __forceinline__ bool has_no_gradient(const PrepareBackwardParams& params, const PreparedRows& rows,
                                                int row) {
  const unsigned short* const d_o = rows.d_o + row * params.backward.d_o.row_stride;
  bool none = rows.d_lse == nullptr || rows.d_lse[row] == 0.0F;
  for (int column = 0; column < params.backward.head_dim_v; ++column) {
    none = none && element_at<element>(d_o, column) == 0.0F;
  }
  return none;
}

/// Rows of a large LSE among sixteen from `first` on, by the whole CTA. True where this thread's has a row_max.
template <Element element>
__device__ __forceinline__ bool find_row_max(const PrepareBackwardParams& params, const PreparedRows& rows,
                                             const RowFragment& of) {
  const int row = of.first + threadIdx.x % kFragmentRows;
  const float lse = row < rows.used ? rows.lse[row] : 0.0F;
  const bool wanted = is_large(lse) && !has_no_gradient<element>(params, rows, row);
  RowMaximum found;
  if (__syncthreads_or(wanted ? 1 : 0) != 0) {
    found = row_maximum<element>(of);
  }
  if (!is_large(lse) || threadIdx.x >= kFragmentRows) {
    return false;
  }
  const float scale = score::remaining_scale(of.rule, of.params.score);
  const LargeLse large = wanted ? large_lse(found, scale, lse) : LargeLse{0.0F, -kMinusInfinity};
  params.row_max[rows.at + row] = large.row_max;
  params.lse_log2[rows.at + row] = large.lse_log2;
  return large.row_max != 0.0F;
}

/// Grid: row_groups * heads * sequences.
template <PrepareBackwardConfig C>
__global__ void __launch_bounds__(kLargeRowsThreads, 2)
    find_large_rows(const __grid_constant__ PrepareBackwardParams params) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const BackwardParams& backward = params.backward;
  const int flat = blockIdx.x / backward.row_groups;
  const int sequence = flat / backward.heads;
  const int head = flat - sequence * backward.heads;
  const int first = (blockIdx.x - flat * backward.row_groups) * kLargeRowsGroup;
  const PreparedRows rows = prepared_rows<C>(params, sequence, head);
  const int row = first + threadIdx.x;
  int some = 0;
  if (__syncthreads_or(row < rows.used && is_large(rows.lse[row]) ? 1 : 0) != 0) {
    constexpr ScoreRule kLengths{.varlen = C.varlen, .offsets = C.offsets};
    const PreparedLengths of{backward.sequences, backward.visibility, params.offsets};
    const sequence::Sequence lengths = sequence::sequence_of<kLengths>(of, sequence);
    const int first_key = sequence::first_positions<kLengths>(of, sequence).k;
    bool found = false;
#pragma unroll 1
    for (int i = first; i < min(first + kLargeRowsGroup, rows.used); i += kFragmentRows) {
      found |= find_row_max<C.element>(params, rows, {params.rule, backward, lengths, sequence, head, i, first_key});
    }
    some = __syncthreads_or(found ? 1 : 0);
  }
  if (threadIdx.x == 0) {
    params.large_rows[blockIdx.x] = some;
  }
}

}  // namespace strobe::auxiliary
