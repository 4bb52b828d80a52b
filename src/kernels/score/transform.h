// What becomes of Q K^T before masks and softmax: softcap, ALiBi's slope, and the scale where it must come first.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/score/fragment.h"

namespace strobe::hopper {

constexpr float kLog2E = 1.442695040888963407F;

/// Softcap, of which the factor `softcap` itself is part of scale_log2: tanh(x) = 1 - 2 / (e^2x + 1). Its absolute
/// error is near 1e-7, where tanh.approx has 5e-4.
template <KernelConfig C>
__device__ __forceinline__ float softcapped(const ForwardParams& params, float score) {
  if constexpr (C.softcap) {
    return 1.0F - 2.0F * ptx::rcp_approx(ptx::ex2_approx(score * params.softcap_scale * (2.0F * kLog2E)) + 1.0F);
  } else {
    return score;
  }
}

/// The slope of a row's head, for exponents of 2.
template <KernelConfig C>
__device__ __forceinline__ float slope_log2(const ForwardParams& params, const Tile& tile, int row) {
  const int head = tile.head * C.packed_heads + row % C.packed_heads;
  return params.alibi_slopes[tile.sequence * params.alibi_batch_stride + head] * kLog2E;
}

/// A single score as exponent of 2.
template <KernelConfig C>
__device__ __forceinline__ float exponent_of(const ForwardParams& params, float score, float slope, int distance) {
  const float exponent = softcapped<C>(params, score) * params.scale_log2;
  return C.alibi ? exponent - slope * fabsf(static_cast<float>(distance)) : exponent;
}

/// What scores are still to be multiplied with, to be exponents of 2, when ScoreTransform is done with them.
template <KernelConfig C>
__device__ __forceinline__ float remaining_scale(const ForwardParams& params) {
  return C.scale_first ? 1.0F : params.scale_log2;
}

/// The scores of one warpgroup's rows.
template <KernelConfig C>
class ScoreTransform {
 public:
  static_assert(!C.alibi || C.scale_first);

  __device__ __forceinline__ ScoreTransform(const ForwardParams& params, const TileWork& work, int warpgroup)
      : params_(params) {
    if constexpr (C.alibi) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const int row = work.row_of(warpgroup) + fragment_row(r);
        center_[r] = center_of<C>(work, row) - fragment_column();
        slope_[r] = slope_log2<C>(params, work.tile, row);
      }
    }
  }

  /// Scores of block n.
  __device__ __forceinline__ void apply(float (&s)[C.block_n / 2], int n) const {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float center = C.alibi ? static_cast<float>(center_[r] - n * C.block_n) : 0.0F;
#pragma unroll
      for (int j = 0; j < C.block_n / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[4 * j + 2 * r + c];
          x = softcapped<C>(params_, x);
          if constexpr (C.alibi) {
            const float distance = fabsf(center - static_cast<float>(8 * j + c));
            x = __fmaf_rn(x, params_.scale_log2, -slope_[r] * distance);
          } else if constexpr (C.scale_first) {
            x *= params_.scale_log2;
          }
        }
      }
    }
  }

 private:
  const ForwardParams& params_;
  int center_[kRowsPerThread];  // less this thread's first column
  float slope_[kRowsPerThread];
};

}  // namespace strobe::hopper
