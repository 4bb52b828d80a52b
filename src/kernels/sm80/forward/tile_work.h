// SPDX-License-Identifier: Apache-2.0
// One tile as numbers: which rows, which keys, where its sequence lies.
#pragma once

#include "kernels/scheduler/tile.h"
#include "kernels/scheduler/tile_rows.h"
#include "kernels/sequence/visible_keys.h"
#include "kernels/sm80/forward/config.h"
#include "kernels/sm80/forward/params.h"
#include "kernels/sm80/forward/smem.h"
#include "kernels/sm80/ptx/mbarrier.h"
#include "kernels/sm80/tile/cta.h"
#include "kernels/sm80/tile/gemm.h"

namespace strobe::sm80::forward {

using score::kFullWarp;
using score::kRowsPerThread;

/// The lanes of a warp: what they wrote to shared memory is there for all of them. In debug variants they meet at a
/// barrier of their own: racecheck sees nothing of the __syncwarp() of a converged warp, which ptxas makes a NOP. Not
/// where groups of warps merge: behind such barriers racecheck takes the __syncthreads() of the merge for none.
template <Config C>
__device__ __forceinline__ void meet_lanes() {
  if constexpr (C.debug && C.key_groups == 1) {
    constexpr int kFirst = 8;  // those before are groups'
    static_assert(C.warps <= 8);
    ptx::barrier_cta_sync(kFirst + warp_of_cta(), kWarpSize);
  } else {
    __syncwarp();
  }
}

struct TileWork : sequence::Sequence {
  Tile tile;
  int m_begin;               // first row of the tile in its sequence
  int n_begin, n_end;        // key blocks that some row of the tile sees; of a part or segment: its own of them
  int tile_begin, tile_end;  // variants that fold: those of all segments
  int round;                 // likewise: of the CTA's tiles
};
static_assert(sizeof(TileWork) <= kTileWorkBytes);

/// The key on the diagonal of a row.
template <Config C>
__device__ __forceinline__ int center_of(const TileWork& work, int row) {
  return strobe::center_of<tiling(C)>(work, row);
}

/// The keys that a row sees.
template <Config C>
__device__ __forceinline__ sequence::KeyRange keys_of(const Params& params, const TileWork& work, int row) {
  return strobe::keys_of<tiling(C)>(params.visibility, work, row,
                                    sequence::first_positions<C.rule>(params, work.tile.sequence).k);
}

/// Blocks of keys that some of the rows [first, first + rows) see.
template <Config C>
__device__ __forceinline__ sequence::KeyBlocks key_blocks(const Params& params, const TileWork& work, int first,
                                                          int rows) {
  return strobe::key_blocks<tiling(C)>(params.visibility, work, first, rows,
                                       sequence::first_positions<C.rule>(params, work.tile.sequence).k);
}

/// Rows of the tile's sequence that exist, and those that are to be written.
template <Config C>
__device__ __forceinline__ int used_rows(const TileWork& work) {
  return work.q.used * C.packed_heads;
}
template <Config C>
__device__ __forceinline__ int owned_rows(const TileWork& work) {
  return work.q.owned * C.packed_heads;
}

__device__ __forceinline__ Tile tile_at(const TileOrder& order, int index) {
  const int section = order.by_section.quotient(index);
  const int within = order.by_section.remainder(index);
  const Divisor& by_heads = section < order.full_sections ? order.by_section_heads : order.by_last;
  const int flat_head = section * order.section_heads + by_heads.remainder(within);
  return {order.m_tiles - 1 - by_heads.quotient(within),
          order.by_heads.quotient(flat_head),
          order.by_heads.remainder(flat_head),
          {}};
}

/// The tile of this CTA where it has but one.
__device__ __forceinline__ Tile tile_of_cta(const TileOrder& order) {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;\n" : "=r"(index));
  return tile_at(order, index);
}

template <Config C>
__device__ __forceinline__ TileWork work_of(const Params& params, const Tile& tile) {
  TileWork work{sequence::sequence_of<C.rule>(params, tile.sequence)};
  work.tile = tile;
  work.m_begin = tile.m * block_m(C);
  const sequence::KeyBlocks blocks = key_blocks<C>(params, work, work.m_begin, block_m(C));
  work.n_begin = blocks.begin;
  work.n_end = blocks.end;
  if constexpr (splits(C) && C.segment_blocks > 0) {
    const int segment = blocks.begin / C.segment_blocks + tile.part.first;
    work.n_end = min(blocks.end, (segment + 1) * C.segment_blocks);
    work.n_begin = min(max(blocks.begin, segment * C.segment_blocks), work.n_end);
  } else if constexpr (splits(C)) {
    work.n_end = min(blocks.end, blocks.begin + tile.part.end);
    work.n_begin = blocks.begin + tile.part.first;
  }
  return work;
}

/// Split schedules: what a CTA knows of its share, and the tile that it is at.
template <Config C>
__device__ __forceinline__ SplitWork& split_work() {
  return *reinterpret_cast<SplitWork*>(shared_memory() + smem_plan(C).split);
}

/// Variants that keep it: the tile that the CTA is at.
template <Config C>
__device__ __forceinline__ TileWork& shared_work() {
  return *reinterpret_cast<TileWork*>(shared_memory() + smem_plan(C).work);
}

/// By all threads: on to `work`, when nobody needs the one before any more, nor its memory.
template <Config C>
__device__ __forceinline__ void share_work(const TileWork& work) {
  __syncthreads();
  if (threadIdx.x == 0) {
    shared_work<C>() = work;
  }
  __syncthreads();
}

/// The tile that this CTA is at. What is found here anew need not be kept in registers meanwhile: hence the volatile
/// instruction, or shared memory.
template <Config C>
__device__ __forceinline__ TileWork tile_work(const Params& params) {
  if constexpr (C.keeps_work) {
    return shared_work<C>();
  } else {
    return work_of<C>(params, tile_of_cta(params.tiles));
  }
}

/// Whether the sink joins this CTA's part of a tile: the first. That of segments joins when they have been joined.
template <Config C>
__device__ __forceinline__ bool sink_joins_part(const TileWork& work) {
  return C.segment_blocks == 0 && work.tile.part.first == 0;
}

/// Batch indices of the tensors: packed ones have one batch.
__device__ __forceinline__ int q_batch(const Params& params, const TileWork& work) {
  return params.sequences.cu_seqlens_q != nullptr ? 0 : work.tile.sequence;
}
__device__ __forceinline__ int k_batch(const Params& params, const TileWork& work) {
  return params.sequences.cu_seqlens_k != nullptr ? 0 : work.tile.sequence;
}

__device__ __forceinline__ int head_kv_of(const Params& params, const TileWork& work) {
  return params.by_heads_per_kv.quotient(work.tile.head);
}

/// The query head of a tile's row.
template <Config C>
__device__ __forceinline__ int head_of(const TileWork& work, int row) {
  return work.tile.head * C.packed_heads + row % C.packed_heads;
}

/// Counted through the batch.
template <Config C>
__device__ __forceinline__ int head_in_batch(const Params& params, const TileWork& work, int row) {
  return work.tile.sequence * params.tiles.heads * C.packed_heads + head_of<C>(work, row);
}

/// A tile's row in Q or O.
template <Config C>
__device__ __forceinline__ unsigned short* query_row(const Rows& rows, const Params& params, const TileWork& work,
                                                     int row) {
  return rows.row(q_batch(params, work), work.q.start + row / C.packed_heads, head_of<C>(work, row));
}

}  // namespace strobe::sm80::forward
