// SPDX-License-Identifier: Apache-2.0
// What the parts of one row weigh, and their weighted sum, by one warp or several.
#pragma once

#include "kernels/auxiliary/join_segments.h"
#include "kernels/math/constants.h"
#include "kernels/ptx/arithmetic.h"
#include "kernels/score/parts.h"

namespace strobe::auxiliary {

constexpr int kWarpColumns = 4 * kWarp;  // four neighbours a lane

/// One row by `warps` warps: each part's weight, the sum of weights, and the part that weighs most. `most` bounds the
/// parts.
template <int warps, int most>
class RowWeights {
 public:
  struct Shared {
    float weight[most];
    float of_warp[2][warps];
  };

  /// `log2_factor` turns differences of exponents into powers of two. statistics(i) gives a part's PartStatistics.
  template <typename Statistics>
  __device__ __forceinline__ RowWeights(Shared& shared, int count, float log2_factor, const Statistics& statistics)
      : weights_(shared.weight) {
    constexpr int kThreads = warps * kWarp;
    constexpr int kOwn = (most + kThreads - 1) / kThreads;
    const int thread = threadIdx.x % kThreads;
    PartStatistics own[kOwn];
    float highest = kMinusInfinity;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      own[i] = {kMinusInfinity, 0.0F};
      if (thread + i * kThreads < count) {
        own[i] = statistics(thread + i * kThreads);
      }
      highest = fmaxf(highest, own[i].max_log2);
    }
    highest = over_row(shared.of_warp[0], highest, [](float a, float b) { return fmaxf(a, b); });
    const float reference = highest == kMinusInfinity ? 0.0F : highest;
    float part_of_sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (thread + i * kThreads < count) {
        const bool empty = own[i].sum == 0.0F;
        const float weight = empty ? 0.0F : ptx::ex2_approx((own[i].max_log2 - reference) * log2_factor);
        part_of_sum += empty ? 0.0F : weight * own[i].sum;
        shared.weight[thread + i * kThreads] = empty ? kAbsent : weight;
      }
    }
    sum = over_row(shared.of_warp[1], part_of_sum, [](float a, float b) { return a + b; });
    max = highest;
    sync();
  }

  /// Weight of a part; kAbsent: it saw no key, and its O is not to be looked at.
  __device__ __forceinline__ float operator[](int part) const { return weights_[part]; }

  __device__ __forceinline__ static void sync() {
    if constexpr (warps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  static constexpr float kAbsent = -1.0F;
  float max;  // the largest exponent, in the parts' own unit
  float sum;  // of exponentials relative to it

 private:
  template <typename Join>
  __device__ __forceinline__ static float over_row(float (&of_warp)[warps], float x, const Join& join) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      x = join(x, __shfl_xor_sync(0xffffffffU, x, distance));
    }
    if constexpr (warps > 1) {
      if (threadIdx.x % kWarp == 0) {
        of_warp[threadIdx.x / kWarp] = x;
      }
      __syncthreads();
      x = of_warp[0];
#pragma unroll
      for (int i = 1; i < warps; ++i) {
        x = join(x, of_warp[i]);
      }
    }
    return x;
  }

  const float* weights_;
};

/// Four columns of the weighted sum of all parts, complete in the row's first warp. values(part) gives four of a part's
/// columns. Warp w takes parts w, w + warps, ...
template <int warps, int most, typename Values>
__device__ __forceinline__ float4 weighted_sum(const RowWeights<warps, most>& weights, int count, bool has_columns,
                                               float4 (&of_warp)[warps][kWarp], const Values& values) {
  constexpr int kAtOnce = warps == 1 ? 8 : 4;  // loads on their way
  const int warp = warps == 1 ? 0 : threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (has_columns) {
    for (int first = warp; first < count; first += warps * kAtOnce) {
      float4 x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int part = first + i * warps;
        if (part < count) {
          x[i] = values(part);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int part = first + i * warps;
        const float weight = part < count ? weights[part] : RowWeights<warps, most>::kAbsent;
        if (weight != RowWeights<warps, most>::kAbsent) {
          sum.x = __fmaf_rn(weight, x[i].x, sum.x);
          sum.y = __fmaf_rn(weight, x[i].y, sum.y);
          sum.z = __fmaf_rn(weight, x[i].z, sum.z);
          sum.w = __fmaf_rn(weight, x[i].w, sum.w);
        }
      }
    }
  }
  if constexpr (warps > 1) {
    of_warp[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int i = 1; i < warps; ++i) {
        const float4 x = of_warp[i][lane];
        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
      }
    }
    __syncthreads();
  }
  return sum;
}

__device__ __forceinline__ float4 times(const float4& x, float factor) {
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

}  // namespace strobe::auxiliary
