// SPDX-License-Identifier: Apache-2.0
// Gradients of a step of sparse attention: P again from the row's LSE, dP, dS, and the products that they are part of.
#if defined(STROBE_CPU_SPARSE_DIFFERENTIATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_SPARSE_DIFFERENTIATE_INL_H_
#undef STROBE_CPU_SPARSE_DIFFERENTIATE_INL_H_
#else
#define STROBE_CPU_SPARSE_DIFFERENTIATE_INL_H_
#endif

#include <algorithm>
#include <span>

#include "cpu/sparse/attend-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// P in place of a row's products, and the products' gradients in place of dP.
HWY_INLINE void differentiate_row(const ListedScores& scores, std::int64_t keys, float lse_log2, float correction,
                                  float* HWY_RESTRICT row, float* HWY_RESTRICT d_row) {
  const Floats d;
  const Vec one = hn::Set(d, 1.0F);
  for (std::int64_t i = 0; i < keys; i += kLanes) {
    const Vec product = hn::Load(d, row + i);
    Vec exponent = hn::Mul(product, hn::Set(d, scores.scale_log2));
    Vec slope = one;
    if (scores.cap_log2 != 0.0F) {
      const Vec capped = tanh(hn::Mul(product, hn::Set(d, scores.cap_scale)));
      exponent = hn::Mul(capped, hn::Set(d, scores.cap_log2));
      slope = hn::NegMulAdd(capped, capped, one);
    }
    const Vec p = exp2(hn::Sub(exponent, hn::Set(d, lse_log2)));
    const Vec d_score = hn::Mul(p, hn::Sub(hn::Load(d, d_row + i), hn::Set(d, correction)));
    hn::Store(p, d, row + i);
    hn::Store(hn::Mul(d_score, slope), d, d_row + i);
  }
}

/// [rows][kSparseBlock] to [keys][rows].
HWY_INLINE void transpose_weights(const float* HWY_RESTRICT from, std::int64_t rows, std::int64_t keys,
                                  float* HWY_RESTRICT to) {
  for (std::int64_t key = 0; key < keys; ++key) {
    for (std::int64_t row = 0; row < rows; ++row) to[key * rows + row] = from[row * kSparseBlock + key];
  }
}

HWY_INLINE void differentiate_keys(std::span<const ListedKey> keys, const ListedScores& scores, std::int64_t head_dim,
                                   std::int64_t head_dim_v, const ListedGradientScratch& scratch, float* p, float* ds) {
  const ListedScratch& panels = scratch.forward;
  gather_listed(keys, head_dim, head_dim_v, panels);
  const auto count = static_cast<std::int64_t>(keys.size());
  multiply_listed(panels.q, scratch.rows, panels.k, count, panels.k_stride, panels.scores);
  multiply_listed(scratch.d_o, scratch.rows, panels.v, count, panels.v_stride, scratch.d_scores);
  for (std::int64_t row = 0; row < scratch.rows; ++row) {
    differentiate_row(scores, count, scratch.lse_log2[row], scratch.correction[row], panels.scores + row * kSparseBlock,
                      scratch.d_scores + row * kSparseBlock);
  }
  std::fill_n(panels.factors, scratch.rows, 1.0F);
  accumulate_listed(scratch.d_scores, panels.k, panels.k_stride, count, panels.factors, scratch.rows, scratch.dq,
                    panels.k_stride, head_dim);
  transpose_weights(panels.scores, scratch.rows, count, p);
  transpose_weights(scratch.d_scores, scratch.rows, count, ds);
}

template <int kKeys>
HWY_INLINE void scatter_tile(const float* HWY_RESTRICT weights, std::int64_t rows, const float* HWY_RESTRICT from,
                             std::int64_t stride, std::int64_t column, float* const* to) {
  const Floats d;
  Accumulators<kKeys, 1> sum;
  HWY_UNROLL(1) for (std::int64_t row = 0; row < rows; ++row) sum.add_outer(weights + row, rows, from + row * stride);
  HWY_UNROLL(8) for (int n = 0; n < kKeys; ++n) {  // one after another: a key may be there twice
    hn::Store(hn::Add(hn::Load(d, to[n] + column), sum.at[n][0]), d, to[n] + column);
  }
}

HWY_INLINE void scatter_keys(const float* weights, std::int64_t rows, const float* from, std::int64_t stride,
                             std::int64_t columns, std::span<float* const> to) {
  for_each_row_tile<kTileRows>(static_cast<std::int64_t>(to.size()), [&](auto tile, std::int64_t key) {
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      scatter_tile<decltype(tile)::value>(weights + key * rows, rows, from + c, stride, c, to.data() + key);
    }
  });
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_SPARSE_DIFFERENTIATE_INL_H_
