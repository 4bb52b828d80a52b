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

/// Blocks that one warpgroup may let pass between two tiles, at most: of the first those left of its own rows' windows,
/// of the second those right of the diagonal. It keeps V's stages meanwhile, and in turns others wait for a V behind
/// those, too.
template <Config C>
constexpr int most_blocks_between() {
  int most = 0;
  for (int w = 0; w < C.consumer_warpgroups; ++w) {
    const int left = (w * kRowsPerWarpgroup + C.block_n - 1) / C.block_n;
    const int right = ((C.consumer_warpgroups - 1 - w) * kRowsPerWarpgroup + C.block_n - 1) / C.block_n;
    most = left + right > most ? left + right : most;
  }
  return most;
}

/// Whether each warpgroup stops at the first block that its own rows see: where blocks are short enough for that to
/// differ, and registers are left for it.
template <Config C>
constexpr bool kOwnBegins =
    C.rule.mask_left && C.consumer_warpgroups > 1 && C.block_n <= kRowsPerWarpgroup && !C.rule.chunked &&
    !C.rule.softcap && !C.rule.alibi && !C.rule.max_logits && !eight_bit(C) && C.schedule != Schedule::split &&
    C.segment_blocks == 0 && most_blocks_between<C>() <= C.stages - (C.ping_pong ? 1 : 0);

/// The first of the key blocks that one warpgroup's rows see. Blocks before it are other warpgroups'.
template <Config C>
__device__ __forceinline__ int n_begin_of(const Params& params, const TileWork& work, int warpgroup) {
  if constexpr (kOwnBegins<C>) {
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
