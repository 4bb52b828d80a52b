// SPDX-License-Identifier: Apache-2.0
// One tile as numbers: which rows, which keys, where its sequence lies. Producers and consumers compute it alike.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/scheduler/tile_rows.h"
#include "kernels/hopper/scheduler/tile_scheduler.h"

namespace strobe::hopper::forward {

struct TileWork : score::Sequence {
  Tile tile;
  int m_begin;         // first row of the tile in its sequence
  int n_begin, n_end;  // key blocks that some row of the tile sees

  __device__ __forceinline__ int row_of(int warpgroup) const { return m_begin + warpgroup * kRowsPerWarpgroup; }
};

template <Config C>
using Scheduler = TileScheduler<tiling(C)>;
template <Config C>
using ScheduleOf = typename Scheduler<C>::Source;

/// The keys that a row sees.
template <Config C>
__device__ __forceinline__ score::KeyRange keys_of(const Params& params, const TileWork& work, int row) {
  return hopper::keys_of<tiling(C)>(params.visibility, work, row);
}

template <Config C>
__device__ __forceinline__ TileWork tile_work(const Params& params, const Tile& tile) {
  TileWork work{score::sequence_of<C.rule>(params.sequences, params.visibility, tile.sequence)};
  work.tile = tile;
  work.m_begin = tile.m * block_m(C);
  const score::KeyBlocks blocks = key_blocks<tiling(C)>(params.visibility, work, work.m_begin, block_m(C));
  work.n_begin = blocks.begin;
  work.n_end = blocks.end;
  return work;
}

/// The end of the key blocks that one warpgroup's rows see; n_begin or less where they see none. Blocks from there to
/// n_end are other warpgroups': this one only lets them pass.
template <Config C>
__device__ __forceinline__ int n_end_of(const Params& params, const TileWork& work, int warpgroup) {
  const int row = work.row_of(warpgroup);
  const int rows_used = work.q.used * C.packed_heads;
  if (row >= rows_used) {
    return work.n_begin;
  }
  if constexpr (C.rule.mask_right) {
    const int row_last = min(row + kRowsPerWarpgroup, rows_used) - 1;
    return min(work.n_end, (keys_of<C>(params, work, row_last).last + C.block_n) / C.block_n);
  }
  return work.n_end;
}

/// A tile as one warpgroup sees it.
struct Assignment {
  TileWork work;
  int n_end;  // of the key blocks that its rows see
  bool exists;
};

template <Config C>
__device__ __forceinline__ Assignment next_assignment(Scheduler<C>& scheduler, const Params& params, int warpgroup) {
  Assignment next{};
  Tile tile;
  next.exists = scheduler.next(tile);
  if (next.exists) {
    next.work = tile_work<C>(params, tile);
    next.n_end = n_end_of<C>(params, next.work, warpgroup);
  }
  return next;
}

}  // namespace strobe::hopper::forward
