// SPDX-License-Identifier: Apache-2.0
// Segments of a row's keys that several CTAs of a row-invariant forward left become one, from the last to the first:
// the order and the arithmetic of a CTA that joins its own (sm90/forward/store/joined.h).
#pragma once

#include "kernels/auxiliary/combine_params.h"
#include "kernels/auxiliary/source.h"
#include "kernels/math/constants.h"
#include "kernels/score/join_rows.h"
#include "kernels/score/lse.h"
#include "kernels/score/modifiers/sink.h"

namespace strobe::auxiliary {

constexpr int kWarp = 32;

/// A row's segments, by all threads of the CTA.
class RowSegments {
 public:
  struct Shared {
    PartStatistics statistics[kMostParts];
    float4 joins[kMostParts];  // factors of what was before and of the segment; its sum; whether both are looked at
    float max_log2;
  };

  /// statistics(i) gives a segment's. They join from the last to the first: a prefix maximum tells each what it meets.
  template <typename Statistics>
  __device__ __forceinline__ RowSegments(Shared& shared, int count, const Statistics& statistics) : shared_(shared) {
    for (int at = threadIdx.x; at < count; at += kCombineThreads) {
      shared.statistics[at] = statistics(count - 1 - at);
    }
    __syncthreads();
    if (threadIdx.x < kWarp) {
      float highest = kMinusInfinity;  // of those before this round's
      for (int first = 0; first < count; first += kWarp) {
        const int at = first + static_cast<int>(threadIdx.x);
        const PartStatistics own = at < count ? shared.statistics[at] : PartStatistics{kMinusInfinity, 0.0F};
        float most = own.sum != 0.0F ? own.max_log2 : kMinusInfinity;
#pragma unroll
        for (int distance = 1; distance < kWarp; distance *= 2) {
          const float other = __shfl_up_sync(0xffffffffU, most, distance);
          most = threadIdx.x >= distance ? fmaxf(other, most) : most;
        }
        const float earlier = __shfl_up_sync(0xffffffffU, most, 1);
        const float met = threadIdx.x == 0 ? highest : fmaxf(highest, earlier);
        const score::JoinFactors factors = score::join_factors(met, own, fmaxf(highest, most));
        if (at < count) {
          const unsigned looked_at = (factors.takes_kept ? 1U : 0U) | (factors.takes_next ? 2U : 0U);
          shared.joins[at] = make_float4(factors.kept, factors.next, own.sum, __uint_as_float(looked_at));
        }
        highest = fmaxf(highest, __shfl_sync(0xffffffffU, most, kWarp - 1));
      }
      if (threadIdx.x == 0) {
        shared.max_log2 = highest;
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ float max_log2() const { return shared_.max_log2; }

  /// A column of P V, of which value(i) is segment i's, and the sum of exponentials.
  template <typename Value>
  __device__ __forceinline__ float2 column_and_sum(int count, const Value& value) const {
    constexpr int kAtOnce = 32;  // loads on their way
    float2 x = make_float2(0.0F, 0.0F);
    for (int first = 0; first < count; first += kAtOnce) {
      float next[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        next[i] = first + i < count ? value(count - 1 - first - i) : 0.0F;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < count) {
          const float4 join = shared_.joins[first + i];
          const unsigned looked_at = __float_as_uint(join.w);
          const score::JoinFactors factors{join.x, join.y, (looked_at & 1U) != 0, (looked_at & 2U) != 0};
          x = make_float2(score::joined(x.x, next[i], factors), score::joined(x.y, join.z, factors));
        }
      }
    }
    return x;
  }

 private:
  const Shared& shared_;
};

/// The sink joins a row, as OnlineSoftmax::join. Returns by what the row's output shrinks.
__device__ __forceinline__ float join_sink(PartStatistics& row, float logit_log2) {
  const float raised = fmaxf(row.max_log2, logit_log2);
  if (raised == kMinusInfinity) {
    return 1.0F;
  }
  const float shrunk = ptx::ex2_approx(row.max_log2 - raised);
  row = {raised, __fmaf_rn(row.sum, shrunk, ptx::ex2_approx(logit_log2 - raised))};
  return shrunk;
}

/// Joins a row's segments and stores it. slot_row(i): where segment i lies; `o` and `lse`: the row's.
template <CombineConfig C, typename SlotRow>
__device__ __forceinline__ void join_segments(const CombineParams& params, int count, bool exists, int q_head,
                                              const SlotRow& slot_row, unsigned short* o, float* lse) {
  __shared__ RowSegments::Shared shared;
  const RowSegments segments(shared, count, [&](int part) { return params.statistics[slot_row(part)]; });
  for (int column = threadIdx.x; column < params.head_dim_v; column += kCombineThreads) {
    const float2 x =
        segments.column_and_sum(count, [&](int part) { return params.sums[slot_row(part) * C.head_dim_v + column]; });
    PartStatistics row{segments.max_log2(), x.y};
    const bool sees = row.sum != 0.0F;
    float factor = 1.0F;
    if constexpr (C.sink) {
      factor = exists ? join_sink(row, score::sink_log2(params.sink, q_head)) : 1.0F;
    }
    if constexpr (C.normalized) {
      factor *= ptx::rcp_approx(row.sum);
    }
    set_element<C.element>(o, column, sees ? x.x * factor : 0.0F);
    if (lse != nullptr && column == 0) {
      *lse = score::lse_of(row.max_log2, row.sum);
    }
  }
}

}  // namespace strobe::auxiliary
