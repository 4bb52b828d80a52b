// SPDX-License-Identifier: Apache-2.0
// A step of sparse attention: rows of listed keys into panels, once for all heads that read them; their products with
// every query head; the online softmax; the product with V. Sums of a row depend on its own query and on the order of
// its keys alone, not on the heads beside it.
#if defined(STROBE_CPU_SPARSE_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_SPARSE_ATTEND_INL_H_
#undef STROBE_CPU_SPARSE_ATTEND_INL_H_
#else
#define STROBE_CPU_SPARSE_ATTEND_INL_H_
#endif

#include <algorithm>
#include <span>
#include <type_traits>

#include "call/limits.h"
#include "cpu/kernels/multiply-inl.h"
#include "cpu/sparse/decode-inl.h"
#include "cpu/sparse/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// visit(std::integral_constant<int, n>, row) for tiles of n rows: the largest first, then halves of it.
template <int kLargest, class Visit>
HWY_INLINE void for_each_row_tile(std::int64_t rows, const Visit& visit) {
  std::int64_t row = 0;
  for (; row + kLargest <= rows; row += kLargest) visit(std::integral_constant<int, kLargest>(), row);
  if constexpr (kLargest > 1) {
    if (row == rows) return;
    const std::int64_t first = row;
    for_each_row_tile<kLargest / 2>(rows - first, [&](auto size, std::int64_t at) { visit(size, first + at); });
  }
}

/// scores[m][n] = the product of row m of q and row n of k, for a tile of both, across the lanes.
template <int kRows, int kKeys>
HWY_INLINE void multiply_tile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, std::int64_t stride,
                              float* HWY_RESTRICT scores) {
  const Floats d;
  Accumulators<kRows, kKeys> sum;
  HWY_UNROLL(1) for (std::int64_t c = 0; c < stride; c += kLanes) {
    FixedVec right[kKeys];
    HWY_UNROLL(4) for (int n = 0; n < kKeys; ++n) right[n] = hn::Load(d, k + n * stride + c);
    HWY_UNROLL(4) for (int m = 0; m < kRows; ++m) {
      const Vec left = hn::Load(d, q + m * stride + c);
      HWY_UNROLL(4) for (int n = 0; n < kKeys; ++n) sum.at[m][n] = hn::MulAdd(left, right[n], sum.at[m][n]);
    }
  }
  HWY_UNROLL(4) for (int m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (int n = 0; n < kKeys; ++n) {
      const Vec products = sum.at[m][n];  // SVE's functions take no FixedVec
      scores[m * kSparseBlock + n] = hn::GetLane(hn::SumOfLanes(d, products));
    }
  }
}

/// Products of `rows` rows of q with `keys` rows of k, whose strides are `stride`.
HWY_INLINE void multiply_listed(const float* q, std::int64_t rows, const float* k, std::int64_t keys,
                                std::int64_t stride, float* scores) {
  constexpr int kRows = kManyRegisters ? 4 : 2;
  for_each_row_tile<4>(keys, [&](auto key_tile, std::int64_t key) {
    constexpr int kKeys = decltype(key_tile)::value;
    for_each_row_tile<kRows>(rows, [&](auto row_tile, std::int64_t row) {
      multiply_tile<decltype(row_tile)::value, kKeys>(q + row * stride, k + key * stride, stride,
                                                      scores + row * kSparseBlock + key);
    });
  });
}

/// to = factor * to + p v, for a tile of rows and all columns of v's.
template <int kRows, int kVecs>
HWY_INLINE void accumulate_tile(const float* HWY_RESTRICT p, const float* HWY_RESTRICT v, std::int64_t v_stride,
                                std::int64_t keys, const float* HWY_RESTRICT factors, float* HWY_RESTRICT to,
                                std::int64_t to_stride) {
  const Floats d;
  Accumulators<kRows, kVecs> sum;
  HWY_UNROLL(8) for (int m = 0; m < kRows; ++m) {
    const Vec factor = hn::Set(d, factors[m]);
    HWY_UNROLL(4) for (int n = 0; n < kVecs; ++n) {
      sum.at[m][n] = hn::Mul(hn::Load(d, to + m * to_stride + n * kLanes), factor);
    }
  }
  HWY_UNROLL(1) for (std::int64_t key = 0; key < keys; ++key) sum.add_outer(p + key, kSparseBlock, v + key * v_stride);
  sum.store_to(to, to_stride);
}

/// The same for `rows` rows.
HWY_INLINE void accumulate_listed(const float* p, const float* v, std::int64_t v_stride, std::int64_t keys,
                                  const float* factors, std::int64_t rows, float* to, std::int64_t to_stride,
                                  std::int64_t columns) {
  const std::int64_t whole = round_up(columns, kLanes);
  for_each_row_tile<kTileRows>(rows, [&](auto row_tile, std::int64_t row) {
    constexpr int kRows = decltype(row_tile)::value;
    float* const row_to = to + row * to_stride;
    const float* const weights = p + row * kSparseBlock;
    std::int64_t c = 0;
    for (; c + 2 * kLanes <= whole; c += 2 * kLanes) {
      accumulate_tile<kRows, 2>(weights, v + c, v_stride, keys, factors + row, row_to + c, to_stride);
    }
    for (; c < whole; c += kLanes) {
      accumulate_tile<kRows, 1>(weights, v + c, v_stride, keys, factors + row, row_to + c, to_stride);
    }
  });
}

/// Exponents of 2 from products.
HWY_INLINE Vec to_exponent(const ListedScores& scores, Vec product) {
  const Floats d;
  if (scores.cap_log2 == 0.0F) return hn::Mul(product, hn::Set(d, scores.scale_log2));
  return hn::Mul(tanh(hn::Mul(product, hn::Set(d, scores.cap_scale))), hn::Set(d, scores.cap_log2));
}

/// Weights in place of a row's products, and what its sums so far are multiplied by.
HWY_INLINE void exponentiate_listed(const ListedScores& scores, std::int64_t keys, float* HWY_RESTRICT row,
                                    float& maximum, float& sum, float& factor) {
  const Floats d;
  const Vec least = hn::Set(d, -kInfinity);
  Vec largest = hn::Set(d, maximum);
  for (std::int64_t i = 0; i < keys; i += kLanes) {
    const auto exists = hn::FirstN(d, static_cast<std::size_t>(std::min(kLanes, keys - i)));
    const Vec exponent = hn::IfThenElse(exists, to_exponent(scores, hn::Load(d, row + i)), least);
    hn::Store(exponent, d, row + i);
    largest = hn::Max(largest, exponent);
  }
  const float new_maximum = hn::GetLane(hn::MaxOfLanes(d, largest));
  const float origin = new_maximum == -kInfinity ? 0.0F : new_maximum;
  Vec added = hn::Zero(d);
  for (std::int64_t i = 0; i < keys; i += kLanes) {
    const Vec weight = exp2(hn::Sub(hn::Load(d, row + i), hn::Set(d, origin)));
    hn::Store(weight, d, row + i);
    added = hn::Add(added, weight);
  }
  factor = hn::GetLane(exp2(hn::Set(d, maximum - origin)));
  sum = sum * factor + hn::GetLane(hn::SumOfLanes(d, added));
  maximum = new_maximum;
}

HWY_INLINE void gather_listed(std::span<const ListedKey> keys, std::int64_t head_dim, std::int64_t head_dim_v,
                              const ListedScratch& scratch) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const ListedKey& key = keys[i];
    float* const k = scratch.k + static_cast<std::int64_t>(i) * scratch.k_stride;
    decode(*key.k_format, key.k, k);
    std::fill(k + head_dim, k + scratch.k_stride, 0.0F);
    if (scratch.v == scratch.k) continue;
    float* const v = scratch.v + static_cast<std::int64_t>(i) * scratch.v_stride;
    if (key.v_format == nullptr) {
      std::copy_n(k, head_dim_v, v);
    } else {
      decode(*key.v_format, key.v, v);
    }
    std::fill(v + head_dim_v, v + scratch.v_stride, 0.0F);
  }
}

HWY_INLINE void add_keys(std::span<const ListedKey> keys, const ListedScores& scores, std::int64_t head_dim,
                         std::int64_t head_dim_v, const ListedScratch& scratch, const ListedState& state) {
  gather_listed(keys, head_dim, head_dim_v, scratch);
  const auto count = static_cast<std::int64_t>(keys.size());
  multiply_listed(scratch.q, state.rows, scratch.k, count, scratch.k_stride, scratch.scores);
  for (std::int64_t row = 0; row < state.rows; ++row) {
    exponentiate_listed(scores, count, scratch.scores + row * kSparseBlock, state.maximum[row], state.sum[row],
                        scratch.factors[row]);
  }
  accumulate_listed(scratch.scores, scratch.v, scratch.v_stride, count, scratch.factors, state.rows, state.o,
                    state.stride, head_dim_v);
}

HWY_INLINE void join_parts(std::span<const ListedState> parts, std::span<const float> weights, std::int64_t row) {
  const Floats d;
  const std::int64_t stride = parts[0].stride;
  float* const to = parts[0].o + row * stride;
  for (std::int64_t c = 0; c < stride; c += kLanes) {
    Vec sum = hn::Mul(hn::Load(d, to + c), hn::Set(d, weights[0]));
    for (std::size_t i = 1; i < parts.size(); ++i) {
      sum = hn::MulAdd(hn::Load(d, parts[i].o + row * stride + c), hn::Set(d, weights[i]), sum);
    }
    hn::Store(sum, d, to + c);
  }
}

HWY_INLINE void store_columns(const float* from, float factor, DType dtype, void* to, std::int64_t count) {
  switch (dtype) {
    case DType::float16: return store_row(from, factor, static_cast<float16*>(to), count);
    case DType::bfloat16: return store_row(from, factor, static_cast<bfloat16*>(to), count);
    default: return store_row(from, factor, static_cast<float*>(to), count);
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_SPARSE_ATTEND_INL_H_
