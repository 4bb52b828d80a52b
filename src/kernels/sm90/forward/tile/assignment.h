// SPDX-License-Identifier: Apache-2.0
// The key blocks of a tile that one warpgroup works on: those that its own rows see.
#pragma once

#include "kernels/sm90/forward/tile/segments.h"

namespace strobe::sm90::forward {

/// The end of the key blocks that one warpgroup's rows see; the tile's n_begin or less where they see none. Blocks from
/// there to n_end are other warpgroups': this one only lets them pass.
template <Config C>
__device__ __forceinline__ int n_end_of(const Params& params, const TileWork& work, int warpgroup) {
  const int row = work.row_of(warpgroup);
  const int rows_used = work.q.used * C.packed_heads;
  if (row >= rows_used) {
    return first_block<C>(work);
  }
  if constexpr (C.rule.mask_right) {
    const int row_last = min(row + kRowsPerWarpgroup, rows_used) - 1;
    return min(work.n_end, (keys_of<C>(params, work, row_last).last + C.block_n) / C.block_n);
  }
  return work.n_end;
}

/// The first of the key blocks that one warpgroup's rows see. Blocks before it are other warpgroups'.
template <Config C>
__device__ __forceinline__ int n_begin_of(const Params& params, const TileWork& work, int warpgroup) {
  if constexpr (C.own_begins) {
    return max(work.n_begin, keys_of<C>(params, work, work.row_of(warpgroup)).first / C.block_n);
  } else {
    return work.n_begin;
  }
}

/// A tile as one warpgroup sees it.
struct Assignment {
  TileWork work;
  int n_begin, n_end;  // of the key blocks that its rows see; none where n_end <= n_begin
  bool exists;
};

/// What follows `before`. Where segments are not joined nothing of that stays in registers.
template <Config C>
__device__ __forceinline__ Assignment next_assignment(const Assignment& before, Scheduler<C>& scheduler,
                                                      const Params& params, int warpgroup) {
  Assignment next{};
  Tile tile;
  if constexpr (folds(C)) {
    next.work = before.work;
    next.exists = next_work<C>(scheduler, params, next.work);
  } else {
    next.exists = scheduler.next(tile);
  }
  if (next.exists) {
    if constexpr (!folds(C)) {
      next.work = tile_work<C>(params, tile);
    }
    next.n_begin = n_begin_of<C>(params, next.work, warpgroup);
    next.n_end = n_end_of<C>(params, next.work, warpgroup);
  }
  return next;
}

}  // namespace strobe::sm90::forward
