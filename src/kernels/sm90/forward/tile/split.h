// SPDX-License-Identifier: Apache-2.0
// Split schedules: what a CTA leaves of a tile that it shares with others. See kernels/scheduler/part.h.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/scheduler/part.h"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile/work.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

template <Config C>
constexpr bool kSplits = C.schedule == Schedule::split;

/// Whether the sink joins this part: the first of a tile. That of segments joins when they have been joined.
template <Config C>
__device__ __forceinline__ bool joins_sink(const PartOfTile& part) {
  return !kSplits<C> || (C.segment_blocks > 0 ? part.slot < 0 : part.first == 0);
}

/// `row` is the tile's: its sequence's less m_begin.
template <Config C>
__device__ __forceinline__ PartRow part_row(const SplitParams& split, const TileWork& work, int row) {
  return strobe::part_row<C.head_dim_v>(split, work.tile.part.slot, row);
}

/// By the CTA that has a tile's first key block: who else has some.
template <Config C>
__device__ __forceinline__ void store_sharers(const Params& params, const SplitParams& split, const TileWork& work,
                                              int warpgroup) {
  if (warpgroup == 0 && threadIdx.x % kWarpgroupSize == 0) {
    strobe::store_sharers(split, params.tiles.heads, params.tiles.m_tiles, work.tile);
  }
}

/// Row r of this thread, as strobe::store_part_row has it.
template <Config C>
__device__ __forceinline__ bool store_part_row(const SplitParams& split, const TileWork& work, int warpgroup, int r,
                                               const float (&o)[C.head_dim_v / 2], float factor, float max_log2,
                                               float sum) {
  const PartRow to = part_row<C>(split, work, warpgroup * kRowsPerWarpgroup + warpgroup_row(r));
  return strobe::store_part_row<C.rule, C.head_dim_v>(to, r, o, factor, max_log2, sum);
}

/// One warpgroup's rows of a part in which they see no key.
template <Config C>
__device__ __forceinline__ void store_empty_part(const SplitParams& split, const TileWork& work, int warpgroup) {
  const int row = warpgroup * kRowsPerWarpgroup + static_cast<int>(threadIdx.x % kWarpgroupSize);
  if (row < (warpgroup + 1) * kRowsPerWarpgroup && work.m_begin + row < work.q.used * C.packed_heads) {
    *part_row<C>(split, work, row).statistics = {kMinusInfinity, 0.0F};
  }
}

}  // namespace strobe::sm90::forward
