// SPDX-License-Identifier: Apache-2.0
// The micro-kernels: small matrix products with the accumulators in registers.
//
// A right operand B is a panel: row k holds kStride floats, of which the first kVecs vectors take part. A left operand
// A is packed in square tiles of kStrip x kStrip, row-major inside (PackedLayout), so that one packed copy serves A and
// A^T and a tile is read in order either way.
#if defined(STROBE_CPU_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_MULTIPLY_INL_H_
#undef STROBE_CPU_MULTIPLY_INL_H_
#else
#define STROBE_CPU_MULTIPLY_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// kRows x kVecs vectors of float32 accumulators.
template <int kRows, int kVecs>
struct Accumulators {
  FixedVec at[kRows][kVecs];

  // Not the implicit constructor, which GCC compiles without the target's instructions.
  HWY_INLINE Accumulators() { clear(); }

  HWY_INLINE void clear() {
    HWY_UNROLL(16) for (int m = 0; m < kRows; ++m) {
      HWY_UNROLL(4) for (int n = 0; n < kVecs; ++n) at[m][n] = hn::Zero(Floats());
    }
  }

  /// at[m] += a[m] * b, for one k; a points to kRows floats `row_stride` apart.
  HWY_INLINE void add_outer(const float* HWY_RESTRICT a, std::int64_t row_stride, const float* HWY_RESTRICT b) {
    const Floats d;
    FixedVec right[kVecs];
    HWY_UNROLL(4) for (int n = 0; n < kVecs; ++n) right[n] = hn::Load(d, b + n * kLanes);
    HWY_UNROLL(16) for (int m = 0; m < kRows; ++m) {
      const Vec left = hn::Set(d, a[m * row_stride]);
      HWY_UNROLL(4) for (int n = 0; n < kVecs; ++n) at[m][n] = hn::MulAdd(left, right[n], at[m][n]);
    }
  }

  /// to = at, rows `stride` floats apart.
  HWY_INLINE void store_to(float* HWY_RESTRICT to, std::int64_t stride) const {
    HWY_UNROLL(16) for (int m = 0; m < kRows; ++m) {
      HWY_UNROLL(4) for (int n = 0; n < kVecs; ++n) hn::Store(at[m][n], Floats(), to + m * stride + n * kLanes);
    }
  }

  /// to += at.
  HWY_INLINE void add_to(float* HWY_RESTRICT to, std::int64_t stride) const {
    const Floats d;
    HWY_UNROLL(16) for (int m = 0; m < kRows; ++m) {
      HWY_UNROLL(4) for (int n = 0; n < kVecs; ++n) {
        float* HWY_RESTRICT p = to + m * stride + n * kLanes;
        hn::Store(hn::Add(hn::Load(d, p), at[m][n]), d, p);
      }
    }
  }

  /// at *= factor, one a lane.
  HWY_INLINE Accumulators& scale(const float* HWY_RESTRICT factor) {
    const Floats d;
    HWY_UNROLL(4) for (int n = 0; n < kVecs; ++n) {
      const Vec own = hn::Load(d, factor + n * kLanes);
      HWY_UNROLL(16) for (int m = 0; m < kRows; ++m) at[m][n] = hn::Mul(at[m][n], own);
    }
    return *this;
  }

  /// to = to * factor + at, one factor a lane.
  HWY_INLINE void rescale_add_to(float* HWY_RESTRICT to, std::int64_t stride, const float* HWY_RESTRICT factor) const {
    const Floats d;
    FixedVec scale[kVecs];
    HWY_UNROLL(4) for (int n = 0; n < kVecs; ++n) scale[n] = hn::Load(d, factor + n * kLanes);
    HWY_UNROLL(16) for (int m = 0; m < kRows; ++m) {
      HWY_UNROLL(4) for (int n = 0; n < kVecs; ++n) {
        float* HWY_RESTRICT p = to + m * stride + n * kLanes;
        hn::Store(hn::MulAdd(hn::Load(d, p), scale[n], at[m][n]), d, p);
      }
    }
  }
};

/// Calls run(std::integral_constant<int, vectors>()): micro-kernels are compiled for every number of vectors that rows
/// at the end of a sequence leave in a panel.
template <class Run>
HWY_INLINE void with_vectors(int vectors, const Run& run) {
  static_assert(kTileVecs == 3);
  switch (vectors) {
    case 1: return run(std::integral_constant<int, 1>());
    case 2: return run(std::integral_constant<int, 2>());
    default: return run(std::integral_constant<int, 3>());
  }
}

/// C[m][n] = sum over k of A[m][k] B[k][n], on top of what `sum` holds. A[m][k] lies at
/// a[(k / kWidth) * strip_stride + m * kWidth + k % kWidth]; k runs to `columns`.
template <int kRows, int kVecs, int kWidth, std::int64_t kStride>
HWY_INLINE Accumulators<kRows, kVecs> multiply_rows(const float* HWY_RESTRICT a, std::int64_t strip_stride,
                                                    std::int64_t columns, const float* HWY_RESTRICT b,
                                                    Accumulators<kRows, kVecs> sum = {}) {
  for (; columns > 0; columns -= kWidth, a += strip_stride) {
    const int width = static_cast<int>(std::min<std::int64_t>(columns, kWidth));
    // Unrolling makes GCC reload B for every row of A: the register file is full.
    HWY_UNROLL(1) for (int k = 0; k < width; ++k, b += kStride) sum.add_outer(a + k, kWidth, b);
  }
  return sum;
}

/// C[m][n] = sum over k of A[k][m] B[k][n] for kStrip columns m of A, on top of what `sum` holds. A[k][m] lies at
/// a[(k / kStrip) * group_stride + (k % kStrip) * kStrip + m]; k runs over `groups` whole tiles.
template <int kVecs, std::int64_t kStride>
HWY_INLINE Accumulators<kStrip, kVecs> multiply_columns(const float* HWY_RESTRICT a, std::int64_t group_stride,
                                                        std::int64_t groups, const float* HWY_RESTRICT b,
                                                        Accumulators<kStrip, kVecs> sum = {}) {
  for (std::int64_t g = 0; g < groups; ++g, a += group_stride) {
    HWY_UNROLL(1) for (int k = 0; k < kStrip; ++k, b += kStride) sum.add_outer(a + k * kStrip, 1, b);
  }
  return sum;
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_MULTIPLY_INL_H_
