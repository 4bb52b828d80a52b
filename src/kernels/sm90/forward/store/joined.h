// SPDX-License-Identifier: Apache-2.0
// Row-invariant calls: a tile's keys come in segments, each of which is summed by itself and then joins what those
// after it left. The arithmetic is that of auxiliary/combine.h for the segments of a split schedule: a row has the same
// bits whichever of the two joins them.
#pragma once

#include "kernels/score/join_rows.h"
#include "kernels/sm90/forward/store/accumulator.h"
#include "kernels/sm90/forward/store/kept.h"
#include "kernels/sm90/forward/store/pipe.h"
#include "kernels/sm90/forward/tile/segments.h"
#include "kernels/sm90/forward/tile/softmax.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

/// One warpgroup's rows of the segments so far: each thread keeps what it holds of O (see fragment.h), and the rows'
/// maxima and sums.
template <Config C>
class KeptRows {
 public:
  __device__ __forceinline__ KeptRows(const Params&, unsigned char*, int) {}
};

template <Config C>
  requires(folds(C))
class KeptRows<C> {
 public:
  using Output = float[C.head_dim_v / 2];

  __device__ __forceinline__ KeptRows(const Params& params, unsigned char* smem, int warpgroup)
      : kept_(params, smem, warpgroup) {}

  /// What was kept joins a segment: `o` and `softmax` become those of both.
  __device__ __forceinline__ void join(const OutputPipe<C>& pipe, Output& o, Softmax<C>& softmax) {
    if constexpr (C.keeps_in_smem) {
      pipe.wait_for_reads();
    }
    score::JoinFactors factors[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      factors[r] = score::join_rows(rows_[r], {softmax.max_log2[r], softmax.sum[r]});
      softmax.max_log2[r] = rows_[r].max_log2;
      softmax.sum[r] = rows_[r].sum;
    }
    const auto by_row = [&](float kept, float next, int r) { return score::joined(kept, next, factors[r]); };
    const bool all = factors[0].takes_kept && factors[0].takes_next && factors[1].takes_kept && factors[1].takes_next;
    if (__all_sync(kFullWarp, all)) {  // nearly always
      join_all(o, [&](float kept, float next, int r) {
        return __fmaf_rn(next, factors[r].next, __fmul_rn(kept, factors[r].kept));
      });
    } else if (__any_sync(kFullWarp, factors[0].takes_kept || factors[1].takes_kept)) {
      join_all(o, by_row);
    }
  }

  /// For the next segment to be joined with.
  __device__ __forceinline__ void keep(const Output& o) const { kept_.put(o); }

  /// The next segment is a tile's first.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      rows_[r] = {kMinusInfinity, 0.0F};
    }
  }

 private:
  template <typename Join>
  __device__ __forceinline__ void join_all(Output& o, const Join& join) const {
    kept_.take([&](float kept, int i) { o[i] = join(kept, o[i], i / 2 % kRowsPerThread); });
  }

  KeptOutput<C> kept_;
  PartStatistics rows_[kRowsPerThread] = {{kMinusInfinity, 0.0F}, {kMinusInfinity, 0.0F}};
};

}  // namespace strobe::sm90::forward
