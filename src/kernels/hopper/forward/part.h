// SPDX-License-Identifier: Apache-2.0
// Split schedules: what a CTA leaves of a tile that it shares with others, P V in float32 and each row's maximum and
// sum, for steps/combine.h. See scheduler/split_scheduler.h.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/hopper/tile/fragment.h"
#include "kernels/math/constants.h"

namespace strobe::hopper::forward {

template <Config C>
constexpr bool kSplits = C.schedule == Schedule::split;

/// Whether the sink joins this part: the first of a tile. That of segments joins when they have been joined.
template <Config C>
__device__ __forceinline__ bool joins_sink(const PartOfTile& part) {
  return !kSplits<C> || (C.segment_blocks > 0 ? part.slot < 0 : part.first == 0);
}

/// One row of a part.
struct PartRow {
  PartStatistics* statistics;
  float* sums;
};

/// `row` is the tile's: its sequence's less m_begin.
template <Config C>
__device__ __forceinline__ PartRow part_row(const SplitParams& split, const TileWork& work, int row) {
  const long long index = static_cast<long long>(work.tile.part.slot) * split.slot_rows + row;
  return {split.statistics + index, split.sums + index * C.head_dim_v};
}

/// By the CTA that has a tile's first key block: who else has some.
template <Config C>
__device__ __forceinline__ void store_sharers(const Params& params, const SplitParams& split, const TileWork& work,
                                              int warpgroup) {
  if (warpgroup == 0 && threadIdx.x % kWarpgroupSize == 0 && work.tile.part.first == 0) {
    const long long head = static_cast<long long>(work.tile.sequence) * params.tiles.heads + work.tile.head;
    split.tiles[head * params.tiles.m_tiles + work.tile.m] = work.tile.part.sharers;
  }
}

/// Row r of this thread: o * factor, of exponentials relative to 2^max_log2 whose sum is `sum`. False if a value of a
/// row that saw a key is not finite.
template <Config C>
__device__ __forceinline__ bool store_part_row(const SplitParams& split, const TileWork& work, int warpgroup, int r,
                                               const float (&o)[C.head_dim_v / 2], float factor, float max_log2,
                                               float sum) {
  const PartRow to = part_row<C>(split, work, warpgroup * kRowsPerWarpgroup + warpgroup_row(r));
  if (threadIdx.x % 4 == 0) {
    *to.statistics = {max_log2, sum};
  }
  float zero = 0.0F;
#pragma unroll
  for (int j = 0; j < C.head_dim_v / 8; ++j) {
    const float2 pair = make_float2(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor);
    *reinterpret_cast<float2*>(to.sums + 8 * j + fragment_column()) = pair;
    if constexpr (is_masked(C.rule)) {
      zero = __fmaf_rn(pair.x, 0.0F, __fmaf_rn(pair.y, 0.0F, zero));
    }
  }
  return zero == 0.0F || sum == 0.0F;
}

/// One warpgroup's rows of a part in which they see no key.
template <Config C>
__device__ __forceinline__ void store_empty_part(const SplitParams& split, const TileWork& work, int warpgroup) {
  const int row = warpgroup * kRowsPerWarpgroup + static_cast<int>(threadIdx.x % kWarpgroupSize);
  if (row < (warpgroup + 1) * kRowsPerWarpgroup && work.m_begin + row < work.q.used * C.packed_heads) {
    *part_row<C>(split, work, row).statistics = {kMinusInfinity, 0.0F};
  }
}

}  // namespace strobe::hopper::forward
