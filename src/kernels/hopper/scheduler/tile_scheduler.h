// Which tiles of Q a CTA (or cluster) computes, in which order. Every role walks the same list by itself, so the
// schedule needs no memory, no atomics and no broadcast, and the same call always does the same.
#pragma once

#include "kernels/common/forward_params.h"
#include "kernels/common/kernel_config.h"

namespace strobe::hopper {

struct Tile {
  int m;         // in units of cluster x block_m rows
  int sequence;  // batch index
  int head;
};

template <KernelConfig C>
using TileListOf = typename TileListFor<C.listed>::type;

__device__ __forceinline__ Tile tile_of(const ForwardParams& params, int flat_head, int m) {
  return {m, flat_head / params.heads, flat_head % params.heads};
}

/// Tiles of one length, or of lengths that only the device knows: dealt in rounds, the tiles of a head together.
template <KernelConfig C>
class RoundScheduler {
 public:
  __device__ RoundScheduler(const ForwardParams& params, const NoTileList&)
      : params_(params), index_(blockIdx.x / C.cluster), lanes_(gridDim.x / C.cluster) {}

  /// False when there are no more.
  __device__ __forceinline__ bool next(Tile& tile) {
    if (index_ >= params_.tiles) {
      return false;
    }
    tile = tile_of(params_, index_ / params_.m_tiles, params_.m_tiles - 1 - index_ % params_.m_tiles);
    index_ = C.persistent ? index_ + lanes_ : params_.tiles;
    return true;
  }

 private:
  const ForwardParams& params_;
  int index_;
  const int lanes_;
};

/// Tiles dealt out by the host (src/plan).
template <KernelConfig C>
class ListScheduler {
 public:
  __device__ ListScheduler(const ForwardParams& params, const TileList& list)
      : params_(params), list_(list), lane_(blockIdx.x / C.cluster), at_(list.first[lane_]) {}

  __device__ __forceinline__ bool next(Tile& tile) {
    for (; period_ < list_.periods; ++period_, at_ = list_.first[lane_]) {
      while (at_ < list_.first[lane_ + 1]) {
        const int entry = list_.tiles[at_++];
        const int head = period_ * list_.period_heads + entry / params_.m_tiles;
        if (head < params_.batch * params_.heads) {  // the last period need not be full
          tile = tile_of(params_, head, entry % params_.m_tiles);
          return true;
        }
      }
    }
    return false;
  }

 private:
  const ForwardParams& params_;
  const TileList& list_;
  const int lane_;
  int at_;
  int period_ = 0;
};

template <KernelConfig C, bool listed>
struct SchedulerFor {
  using type = RoundScheduler<C>;
};
template <KernelConfig C>
struct SchedulerFor<C, true> {
  using type = ListScheduler<C>;
};

template <KernelConfig C>
using TileScheduler = typename SchedulerFor<C, C.listed>::type;

}  // namespace strobe::hopper
