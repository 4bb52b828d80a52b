// One tile as numbers: which rows, which keys, where its sequence lies. Producers and consumers compute it alike.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/scheduler/sequence_rows.h"
#include "kernels/hopper/scheduler/tile_scheduler.h"

namespace strobe::hopper {

struct TileWork : Sequence {
  Tile tile;
  int m_begin;         // first row of this CTA's tile in its sequence
  int n_begin, n_end;  // key blocks that some row of the tile sees

  __device__ __forceinline__ int row_of(int warpgroup) const { return m_begin + warpgroup * kRowsPerWarpgroup; }
};

template <KernelConfig C>
__device__ __forceinline__ TileWork tile_work(const ForwardParams& params, const Tile& tile, int cluster_rank) {
  TileWork work{sequence_of<C>(params, tile.sequence)};
  work.tile = tile;
  work.m_begin = (tile.m * C.cluster + cluster_rank) * block_m(C);
  // The cluster's CTAs share every K and V block, so the range is that of all their rows.
  const KeyBlocks blocks = key_blocks<C>(params, work, tile.m * C.cluster * block_m(C), C.cluster * block_m(C));
  work.n_begin = blocks.begin;
  work.n_end = blocks.end;
  return work;
}

/// The end of the key blocks that one warpgroup's rows see; n_begin or less where they see none. Blocks from there to
/// n_end are other warpgroups': this one only lets them pass.
template <KernelConfig C>
__device__ __forceinline__ int n_end_of(const ForwardParams& params, const TileWork& work, int warpgroup) {
  const int row = work.row_of(warpgroup);
  const int rows_used = work.q.used * C.packed_heads;
  if (row >= rows_used) {
    return work.n_begin;
  }
  if constexpr (C.mask_right) {
    const int row_last = min(row + kRowsPerWarpgroup, rows_used) - 1;
    return min(work.n_end, (last_key<C>(params, work, row_last) + C.block_n) / C.block_n);
  }
  return work.n_end;
}

}  // namespace strobe::hopper
