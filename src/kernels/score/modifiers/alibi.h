// SPDX-License-Identifier: Apache-2.0
// ALiBi: a score less a slope times the distance, in keys, from the key on its query's diagonal.
//
// Forward: of a single score less_slope(), of a tile AlibiRows. Derivative: 1. In a backward the slope joins what is
// subtracted of a score's exponent: plus_slope(). The parameters are plain C++ without std headers, shared by host and
// device.
// Source: Press et al., "Train short, test long" (2022), section 3.
#pragma once

#include "kernels/score/rule.h"

#ifdef __CUDACC_RTC__
#include "kernels/math/constants.h"
#include "kernels/score/fragment.h"
#endif

namespace strobe {

/// ALiBi rules.
struct AlibiParams {
  const float* slopes;  // [batch or 1, query heads]
  long long batch_stride;
};

/// Registers of a thread that a forward keeps for it.
inline constexpr int kAlibiRegisters = 8;

#ifdef __CUDACC_RTC__

namespace score {

/// The slope of a query head, for exponents of 2.
__device__ __forceinline__ float slope_log2(const AlibiParams& params, int batch, int head) {
  return params.slopes[batch * params.batch_stride + head] * kLog2E;
}

/// A score less its part.
__device__ __forceinline__ float less_slope(float score, float slope, float distance) {
  return __fmaf_rn(-slope, fabsf(distance), score);
}

/// What is subtracted of an exponent, with its part.
__device__ __forceinline__ float plus_slope(float subtracted, float slope, float distance) {
  return __fmaf_rn(fabsf(distance), slope, subtracted);
}

/// A thread's rows of a tile, block_n keys wide; the second one's query is `query_step` after the first's. Both ways to
/// apply it call apply(add) once: add(score, r, column) is a score of row r with its part.
template <ScoreRule R, int block_n, int query_step>
class AlibiRows {
 public:
  /// center(): the key on the first row's diagonal; slope(r): that of row r, in the unit of the scores.
  template <typename Center, typename SlopeOf>
  __device__ __forceinline__ AlibiRows(const Center& center, const SlopeOf& slope) {
    if constexpr (R.alibi) {
      center_ = center() - fragment_column();
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        slope_[r] = slope(r);
      }
    }
  }

  /// Block n, all of each score's part; without ALiBi scores stay as they are.
  template <typename Apply>
  __device__ __forceinline__ void absolute(int n, const Apply& apply) const {
    const float center = R.alibi ? static_cast<float>(center_ - n * block_n) : 0.0F;
    apply([&](float score, int r, int column) {
      const float distance = center - static_cast<float>(column - r * query_step);
      return R.alibi ? less_slope(score, slope_[r], distance) : score;
    });
  }

  /// Block n without what all scores of a row have in common where all keys lie on one side of the diagonal: returns
  /// that, to be added to a row's exponents, of which a score is one over `scale`. The rest is in proportion to the
  /// distance from the key of this thread that is nearest to the diagonal, so that no score loses more of its precision
  /// than by absolute().
  template <typename Apply>
  __device__ __forceinline__ RowNumbers relative(int n, float scale, const Apply& apply) const {
    static_assert(R.alibi);
    constexpr int kLast = block_n - 7;  // of this thread's columns
    const int center = center_ - n * block_n;
    const auto origin = [&](int r, int distance) {
      return slope_[r] * scale * static_cast<float>(distance + r * query_step);
    };
    if (__all_sync(kFullWarp, center >= kLast)) {
      apply([&](float score, int r, int column) {
        return __fmaf_rn(slope_[r], static_cast<float>(column - kLast), score);
      });
      return {{-origin(0, center - kLast), -origin(1, center - kLast)}};
    }
    if constexpr (!R.mask_right) {
      if (__all_sync(kFullWarp, center + query_step <= 0)) {
        apply([&](float score, int r, int column) { return __fmaf_rn(-slope_[r], static_cast<float>(column), score); });
        return {{origin(0, center), origin(1, center)}};
      }
    }
    absolute(n, apply);
    return {};
  }

 private:
  int center_;  // of the first row, less this thread's first column
  float slope_[kRowsPerThread];
};

}  // namespace score

#endif

}  // namespace strobe
