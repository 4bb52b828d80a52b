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
  sequence::KeyRange keys = strobe::keys_of<tiling(C)>(params.visibility, work, row);
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
  TileWork work{sequence::sequence_of<C.rule>(params.sequences, params.visibility, tile.sequence)};
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
  const sequence::KeyBlocks blocks = key_blocks<tiling(C)>(params.visibility, work, work.m_begin, block_m(C));
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
template <Config C>
__device__ __forceinline__ bool next_work(Scheduler<C>& scheduler, const Params& params, TileWork& work) {
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
