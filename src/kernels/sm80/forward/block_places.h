// SPDX-License-Identifier: Apache-2.0
// Where blocks of keys and values lie that are in pages.
#pragma once

#include "kernels/sequence/cache.h"
#include "kernels/sm80/forward/tile_work.h"

namespace strobe::sm80::forward {

/// Where the rows of one block after another lie: pages that are looked up ahead, so that their table is read under the
/// copies, and once for all lanes. A lane looks up one piece of the block: page_rows rows of one page.
template <Config C>
class BlockPlaces {
 public:
  __device__ __forceinline__ BlockPlaces(const Params& params, const TileWork& work)
      : sequence_(work.tile.sequence), start_(work.k.start), head_(head_kv_of(params, work)) {}

  /// `first`: the block's first key, of `used`.
  __device__ __forceinline__ void find(const Params& params, int first, int used) {
    const int row = lane_of_warp() * C.page_rows;
    const int key = first + row;
    sequence::CachePlace place{sequence::kNoEntry, 0};
    if (row < C.block_n && key < used) {
      place = sequence::cache_place<true, false>(params.cache, sequence_, start_ + key);
    }
    const bool exists = place.entry != sequence::kNoEntry;
    exists_ = __ballot_sync(score::kFullWarp, exists);
    key_ = exists ? params.k.row(place.entry, place.row, head_) : params.k.data;
    value_ = exists ? params.v.row(place.entry, place.row, head_) : params.v.data;
  }

  // Where piece `piece` of the block begins in K and in V: any of the tensor's rows where it does not exist. All lanes
  // call them together.
  __device__ __forceinline__ const unsigned short* key(int piece) const { return of_lane(key_, piece); }
  __device__ __forceinline__ const unsigned short* value(int piece) const { return of_lane(value_, piece); }

  __device__ __forceinline__ bool exists(int piece) const { return (exists_ >> piece & 1U) != 0; }

 private:
  __device__ __forceinline__ static const unsigned short* of_lane(const unsigned short* row, int lane) {
    return reinterpret_cast<const unsigned short*>(
        __shfl_sync(score::kFullWarp, reinterpret_cast<unsigned long long>(row), lane));
  }

  int sequence_, start_, head_;
  const unsigned short* key_ = nullptr;  // the lane's piece
  const unsigned short* value_ = nullptr;
  unsigned exists_ = 0;
};

/// The rows of variants that do not look ahead: they find each row when they copy it.
template <Config C>
  requires(!C.pages_ahead)
class BlockPlaces<C> {
 public:
  __device__ __forceinline__ BlockPlaces(const Params&, const TileWork&) {}
};

}  // namespace strobe::sm80::forward
