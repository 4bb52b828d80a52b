// SPDX-License-Identifier: Apache-2.0
// Row-invariant calls: a tile's keys come in segments, each of which is summed by itself and then joins what those
// after it left. The arithmetic is that of auxiliary/combine.h for the segments of a split schedule: a row has the same
// bits whichever of the two joins them.
#pragma once

#include "kernels/score/join_rows.h"
#include "kernels/sm80/forward/epilogue.h"

namespace strobe::sm80::forward {

/// What a thread keeps of a fragment: what it holds of O, and its rows' maxima and sums.
template <Config C>
class KeptFragment {
 public:
  using Output = float[C.head_dim_v / 2];

  __device__ __forceinline__ KeptFragment(const Params& params, int f)
      : first_(reinterpret_cast<float4*>(params.kept) +
               (static_cast<long long>(blockIdx.x) * kept_vectors(C) + f * (kVectors + 1)) * threads_per_block(C) +
               threadIdx.x) {}

  /// What was kept joins a segment, whose sums are the rows': `o` and `softmax` become those of both.
  __device__ __forceinline__ void join(Output& o, Softmax<C>& softmax) const {
    const float4 statistics = get(kVectors);
    PartStatistics rows[kRowsPerThread] = {{statistics.x, statistics.y}, {statistics.z, statistics.w}};
    score::JoinFactors factors[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      factors[r] = score::join_rows(rows[r], {softmax.max_log2[r], softmax.sum[r]});
      softmax.max_log2[r] = rows[r].max_log2;
      softmax.sum[r] = rows[r].sum;
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float4 kept = get(j);
      o[4 * j] = score::joined(kept.x, o[4 * j], factors[0]);
      o[4 * j + 1] = score::joined(kept.y, o[4 * j + 1], factors[0]);
      o[4 * j + 2] = score::joined(kept.z, o[4 * j + 2], factors[1]);
      o[4 * j + 3] = score::joined(kept.w, o[4 * j + 3], factors[1]);
    }
  }

  /// For the next segment to be joined with.
  __device__ __forceinline__ void keep(const Output& o, const Softmax<C>& softmax) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      at(j) = make_float4(o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]);
    }
    at(kVectors) = make_float4(softmax.max_log2[0], softmax.sum[0], softmax.max_log2[1], softmax.sum[1]);
  }

 private:
  static constexpr int kVectors = C.head_dim_v / 8;

  /// Volatile: else the compiler loads all of it at once, for which there are no registers.
  __device__ __forceinline__ float4 get(int vector) const {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(&at(vector))
                 : "memory");
    return x;
  }

  /// Neighbouring threads' vectors are neighbours.
  __device__ __forceinline__ float4& at(int vector) const { return first_[vector * threads_per_block(C)]; }

  float4* first_;
};

/// A segment of a tile, of this warp's rows: it joins those after it. True if it is the tile's first, and so the last
/// to come; else it is kept for the next.
template <Config C>
__device__ __forceinline__ bool join_segments(const Params& params, const TileWork& work, int first_row,
                                              float (&o)[fragments(C)][C.head_dim_v / 2],
                                              Softmax<C> (&softmax)[fragments(C)]) {
  const bool ends_tile = work.n_begin == work.tile_begin;
#pragma unroll
  for (int f = 0; f < fragments(C); ++f) {
    const KeptFragment<C> kept(params, f);
    softmax[f].finish();
    if (work.n_end != work.tile_end) {
      kept.join(o[f], softmax[f]);
    }
    if (!ends_tile) {
      store_max_logits<C>(params, work, first_row + f * kFragmentRows, softmax[f]);
      kept.keep(o[f], softmax[f]);
    }
  }
  return ends_tile;
}

}  // namespace strobe::sm80::forward
