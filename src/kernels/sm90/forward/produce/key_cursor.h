// SPDX-License-Identifier: Apache-2.0
// The blocks of keys of a CTA's tiles, one after another as consumers use them.
#pragma once

#include "kernels/sm90/forward/tile/blocks.h"
#include "kernels/sm90/forward/tile/segments.h"

namespace strobe::sm90::forward {

/// With `stops`, at tiles without a visible block, too: of the warp that hands out tiles where others are handed them.
template <Config C, bool stops = false>
class KeyCursor {
 public:
  __device__ __forceinline__ KeyCursor(const Params& params, const ScheduleOf<C>& schedule)
      : params_(params), scheduler_(params, schedule) {}

  /// On to the next block, of the next tile where this one's are done. False when there is none.
  __device__ __forceinline__ bool next() {
    begins_tile_ = false;
    for (n_ = walk_.before(n_); !walk_.has(n_); n_ = walk_.before(work_.n_end)) {
      if (stops && begins_tile_) {
        break;
      }
      if (!next_work<C>(scheduler_, params_, work_)) {
        return false;
      }
      ++tiles_;
      begins_tile_ = true;
      walk_ = {params_, work_};
    }
    return true;
  }

  /// Whether the tile has no visible block.
  __device__ __forceinline__ bool has_none() const { return stops && !walk_.has(n_); }

  __device__ __forceinline__ const TileWork& work() const { return work_; }
  __device__ __forceinline__ int block() const { return n_; }
  __device__ __forceinline__ BlockWalk<C>& walk() { return walk_; }
  __device__ __forceinline__ const BlockWalk<C>& walk() const { return walk_; }
  __device__ __forceinline__ int head() const {
    return C.values_in_keys ? 0 : params_.by_heads_per_kv.quotient(work_.tile.head);  // latent rows have one
  }

  /// Whether the block is its tile's first, or its segment's.
  __device__ __forceinline__ bool begins_tile() const { return begins_tile_; }

  /// Tiles, or segments of them, begun so far, those without visible keys among them.
  __device__ __forceinline__ int tiles() const { return tiles_; }

 private:
  const Params& params_;
  LeadingScheduler<tiling(C), stops> scheduler_;
  TileWork work_{};
  BlockWalk<C> walk_;
  int n_ = 0;  // visible blocks from work_.n_begin to it are still to come
  int tiles_ = 0;
  bool begins_tile_ = false;
};

}  // namespace strobe::sm90::forward
