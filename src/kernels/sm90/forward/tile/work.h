// SPDX-License-Identifier: Apache-2.0
// One tile as numbers: which rows, which keys, where its sequence lies. Producers and consumers compute it alike.
#pragma once

#include "kernels/scheduler/tile_rows.h"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/scheduler/tile_scheduler.h"

namespace strobe::sm90::forward {

struct TileWork : sequence::Sequence {
  Tile tile;
  int m_begin;         // first row of the tile in its sequence
  int n_begin, n_end;  // key blocks that some row of the tile sees; split schedules: this CTA's of them
  int first_key;       // whole chunks: of the tile's, whose keys end at k.used
  int tile_begin;      // where segments are joined: the first block of the tile, n_begin being the segment's
  bool begins_tile;    // likewise: no segment of the tile went before

  __device__ __forceinline__ int row_of(int warpgroup) const { return m_begin + warpgroup * kRowsPerWarpgroup; }
};

template <Config C>
using Scheduler = TileScheduler<tiling(C)>;
template <Config C>
using ScheduleOf = typename Scheduler<C>::Source;

/// The keys that a row sees.
template <Config C>
__device__ __forceinline__ sequence::KeyRange keys_of(const Params& params, const TileWork& work, int row) {
  const int first_key = sequence::first_positions<C.rule>(params, work.tile.sequence).k;
  sequence::KeyRange keys = strobe::keys_of<tiling(C)>(params.visibility, work, row, first_key);
  if constexpr (C.whole_chunks) {
    keys.first = work.first_key;
  }
  return keys;
}

/// 8-bit operands have scales for as many rows as a sequence may have: lengths that the caller got wrong must not lead
/// out of them, nor before the tensors.
__device__ __forceinline__ void keep_inside(sequence::SequenceRows& rows, int seqlen) {
  rows.start = max(rows.start, 0);
  rows.used = min(rows.used, seqlen);
}

template <Config C>
__device__ __forceinline__ TileWork tile_work(const Params& params, const Tile& tile) {
  TileWork work{sequence::sequence_of<C.rule>(params, tile.sequence)};
  work.tile = tile;
  work.m_begin = tile.m * block_m(C);
  if constexpr (eight_bit(C) && C.rule.varlen) {
    keep_inside(work.q, params.sequences.seqlen_q);
    keep_inside(work.k, params.sequences.seqlen_k);
  }
  if constexpr (C.whole_chunks) {
    const int begin = sequence::chunk_begin(center_of<tiling(C)>(work, work.m_begin), params.visibility.chunk);
    work.first_key = max(begin, 0);
    work.k.used = max(min(work.k.used, begin + params.visibility.chunk), 0);
  }
  const sequence::KeyBlocks blocks = key_blocks<tiling(C)>(params.visibility, work, work.m_begin, block_m(C),
                                                           sequence::first_positions<C.rule>(params, tile.sequence).k);
  work.n_begin = C.whole_chunks ? min(work.first_key / C.block_n, blocks.end) : blocks.begin;
  work.n_end = blocks.end;
  if constexpr (C.schedule == Schedule::split && C.segment_blocks > 0) {
    const int segment = blocks.begin / C.segment_blocks + tile.part.first;
    work.n_end = min(blocks.end, (segment + 1) * C.segment_blocks);
    work.n_begin = min(max(blocks.begin, segment * C.segment_blocks), work.n_end);
  } else if constexpr (C.schedule == Schedule::split) {
    work.n_end = min(blocks.end, blocks.begin + tile.part.end);
    work.n_begin = blocks.begin + tile.part.first;
  }
  return work;
}

}  // namespace strobe::sm90::forward
