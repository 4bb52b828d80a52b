// SPDX-License-Identifier: Apache-2.0
// Split schedules: the key blocks of all tiles shared out evenly among the CTAs, whatever lengths the device finds.
// With few queries there are fewer tiles than multiprocessors, and reading keys is all the time there is.
//
// A CTA shares at most two tiles with others: the one that it goes on with and the one that it does not end; where
// split_work.h finds whole parts of tiles for the CTAs, one. Of those it leaves parts, which
// kernels/auxiliary/combine.h puts together in the order of the keys: the same call always does the same.
#pragma once

#include "kernels/scheduler/split_work.h"
#include "kernels/scheduler/tile.h"
#include "kernels/scheduler/tile_rows.h"

namespace strobe {

/// The key blocks of all tiles in a row, sequence by sequence, head by head: CTA w of W takes the w-th W-th of them,
/// whatever lengths the device finds. Where keys have segments, those are what is laid in a row, and each is a part;
/// where CTAs have whole parts of tiles, those are.
/// With heads outermost, all sequences of a head come before those of the next: CTAs that work on two heads of one
/// sequence then read its keys at the same time.
/// In pairs, two CTAs are one worker, for two heads at a time. Slots are counted as if all first CTAs came before all
/// second ones, so that the parts of a tile have neighbouring ones.
template <Tiling T>
class SplitScheduler {
 public:
  using Source = SplitWork;

  /// `params`: a kernel's. `params.tiles.heads`: of q, divided by packed_heads.
  template <typename Params>
  __device__ SplitScheduler(const Params& params, const SplitWork& work)
      : heads_(params.tiles.heads / kCtas),
        of_{params.sequences, work.visibility, sequence::offsets_of<T.rule>(params)},
        work_(work) {
    const SequenceParams& sequences = params.sequences;
    blocks_ = T.rule.varlen ? work.first_block[sequences.sequences] * heads_
                            : work.blocks_of_head * heads_ * sequences.sequences;
    workers_ = min(static_cast<int>(gridDim.x) / kCtas, blocks_);  // each of them has a block: no part is left out
    if (has_whole_parts<T>(work)) {
      at_ = worker() * work.parts_of_cta;
      end_ = min(at_ + work.parts_of_cta, blocks_);
    } else {
      at_ = worker() < workers_ ? first_of(worker()) : 0;
      end_ = worker() < workers_ ? first_of(worker() + 1) : 0;
    }
    if constexpr (T.heads_outermost) {
      blocks_of_all_ = blocks_ / max(heads_, 1);
    } else if constexpr (T.rule.varlen) {
      int end = sequences.sequences;  // of those that may hold at_
      while (end - sequence_ > 1) {
        const int middle = (sequence_ + end) / 2;
        (work.first_block[middle] * heads_ <= at_ ? sequence_ : end) = middle;
      }
    }
  }

  __device__ __forceinline__ bool next(Tile& tile) {
    if (at_ >= end_) {
      return false;
    }
    int within = find_sequence();
    const sequence::Sequence sequence = sequence::sequence_of<T.rule>(of_, sequence_);
    const int first_key = sequence::first_positions<T.rule>(of_, sequence_).k;
    const int blocks_of_head =  // or parts
        T.rule.varlen ? work_.first_block[sequence_ + 1] - work_.first_block[sequence_] : work_.blocks_of_head;
    tile.sequence = sequence_;
    tile.head = T.heads_outermost ? at_ / blocks_of_all_ : within / blocks_of_head;
    if constexpr (T.in_pairs) {
      tile.head = tile.head * kCtas + rank();
    }
    within %= blocks_of_head;
    tile.m = 0;
    int blocks = blocks_of_tile<T>(work_.visibility, sequence, 0, first_key);
    while (within >= blocks) {
      within -= blocks;
      blocks = blocks_of_tile<T>(work_.visibility, sequence, ++tile.m, first_key);
    }
    PartOfTile& part = tile.part;
    part.first = within;
    if constexpr (T.segment_blocks > 0) {
      part.end = within + 1;
      part.slot = blocks == 1 ? -1 : at_;
      part.sharers = {at_, blocks};
    } else if (has_whole_parts<T>(work_)) {
      part.first = within * work_.most_blocks;
      part.end = min(blocks, part.first + work_.most_blocks);
      part.slot = blocks_of_head == 1 ? -1 : 2 * at_ + (within == 0 ? 1 : 0);  // the CTA's only part, if not whole
      part.sharers = {at_, blocks_of_head};
      ++at_;
      return true;
    } else {
      part.end = min(blocks, within + end_ - at_);
      const bool whole = part.end - part.first == blocks;
      const int first = worker() + rank() * (static_cast<int>(gridDim.x) / kCtas);
      part.slot = whole ? -1 : 2 * first + (within == 0 ? 1 : 0);
      part.sharers = {first, whole ? 1 : worker_of(at_ - within + blocks - 1) + 1 - worker()};
    }
    at_ += part.end - part.first;
    return true;
  }

 private:
  static constexpr int kCtas = T.in_pairs ? kPairCtas : 1;  // of a worker
  static_assert(!T.in_pairs || (T.heads_outermost && T.segment_blocks == 0));

  __device__ __forceinline__ static int worker() { return static_cast<int>(blockIdx.x) / kCtas; }
  __device__ __forceinline__ static int rank() { return static_cast<int>(blockIdx.x) % kCtas; }
  __device__ __forceinline__ int first_of(int worker) const {
    return static_cast<int>(static_cast<long long>(blocks_) * worker / workers_);
  }
  __device__ __forceinline__ int worker_of(int block) const {
    return static_cast<int>((static_cast<long long>(block + 1) * workers_ - 1) / blocks_);
  }

  /// Moves to the sequence of at_, and says how far behind its first block that is.
  __device__ __forceinline__ int find_sequence() {
    const int heads = T.heads_outermost ? 1 : heads_;  // of a sequence that lie in a row
    const int at = T.heads_outermost ? at_ % blocks_of_all_ : at_;
    if constexpr (T.rule.varlen) {
      if (T.heads_outermost && at < work_.first_block[sequence_]) {
        sequence_ = 0;
      }
      while (at >= work_.first_block[sequence_ + 1] * heads) {
        ++sequence_;
      }
      return at - work_.first_block[sequence_] * heads;
    } else {
      const int blocks = work_.blocks_of_head * heads;
      sequence_ = at / blocks;
      return at - sequence_ * blocks;
    }
  }

  /// What sequences are found by.
  struct Lengths {
    const SequenceParams& sequences;
    const VisibilityParams& visibility;
    const OffsetParams offsets;
  };

  const int heads_;
  const Lengths of_;
  const SplitWork& work_;
  int sequence_ = 0;
  int blocks_;             // of all tiles
  int blocks_of_all_ = 1;  // heads outermost: of one head's tiles
  int workers_;            // that have some
  int at_, end_;           // this CTA's that are left
};

}  // namespace strobe
