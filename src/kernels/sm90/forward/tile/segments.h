// SPDX-License-Identifier: Apache-2.0
// Where segments are joined, each of them is a piece of work like a tile: from one to the next, and from the last one
// of a tile to the next tile.
#pragma once

#include "kernels/sm90/forward/tile/work.h"

namespace strobe::sm90::forward {

/// On to the next segment of a tile, from right to left. False where it has no more.
template <Config C>
__device__ __forceinline__ bool next_segment(TileWork& work) {
  if (work.n_begin <= work.tile_begin) {
    return false;
  }
  work.n_end = work.n_begin;
  work.n_begin = max(work.tile_begin, work.n_end - C.segment_blocks);
  work.begins_tile = false;
  return true;
}

/// A tile of which everything is to be done; where segments are joined, its first segment.
template <Config C>
__device__ __forceinline__ TileWork first_work(const Params& params, const Tile& tile) {
  TileWork work = tile_work<C>(params, tile);
  if constexpr (folds(C)) {
    work.tile_begin = work.n_begin;
    work.begins_tile = true;
    work.n_begin = max(work.tile_begin, (work.n_end - 1) / C.segment_blocks * C.segment_blocks);
  }
  return work;
}

/// From one tile to the next or, where segments are joined, to the next segment of it. `work` is empty at first. False
/// when there is none.
template <Config C, typename AnyScheduler>
__device__ __forceinline__ bool next_work(AnyScheduler& scheduler, const Params& params, TileWork& work) {
  if constexpr (folds(C)) {
    if (next_segment<C>(work)) {
      return true;
    }
  }
  Tile tile;
  if (!scheduler.next(tile)) {
    return false;
  }
  work = first_work<C>(params, tile);
  return true;
}

/// Whether no segment of the tile follows.
template <Config C>
__device__ __forceinline__ bool ends_tile(const TileWork& work) {
  return !folds(C) || work.n_begin == work.tile_begin;
}

/// The first block of the whole tile.
template <Config C>
__device__ __forceinline__ int first_block(const TileWork& work) {
  return folds(C) ? work.tile_begin : work.n_begin;
}

}  // namespace strobe::sm90::forward
