// Which tiles of Q a CTA (or cluster) computes, in which order. Every role walks the same list by itself, so the
// schedule needs no memory, no atomics and no broadcast, and the same call always does the same.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/scheduler/sequence_order.h"

namespace strobe::hopper {

struct Tile {
  int m;         // in units of cluster x block_m rows
  int sequence;  // batch index
  int head;      // in units of packed_heads
};

__device__ __forceinline__ Tile tile_of(const ForwardParams& params, int flat_head, int m) {
  return {m, params.by_heads.quotient(flat_head), params.by_heads.remainder(flat_head)};
}

/// Tiles of one length: dealt in rounds, the tiles of a head together.
template <KernelConfig C>
class RoundScheduler {
 public:
  using Source = NoTileList;

  __device__ RoundScheduler(const ForwardParams& params, const NoTileList&)
      : params_(params), index_(blockIdx.x / C.cluster), lanes_(gridDim.x / C.cluster) {}

  /// False when there are no more.
  __device__ __forceinline__ bool next(Tile& tile) {
    if (index_ >= params_.tiles) {
      return false;
    }
    tile = tile_of(params_, params_.by_m_tiles.quotient(index_),
                   params_.m_tiles - 1 - params_.by_m_tiles.remainder(index_));
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
  using Source = TileList;

  __device__ ListScheduler(const ForwardParams& params, const TileList& list)
      : params_(params), list_(list), lane_(blockIdx.x / C.cluster), at_(list.first[lane_]) {}

  __device__ __forceinline__ bool next(Tile& tile) {
    for (; period_ < list_.periods; ++period_, at_ = list_.first[lane_]) {
      while (at_ < list_.first[lane_ + 1]) {
        const int entry = list_.tiles[at_++];
        const int head = period_ * list_.period_heads + params_.by_m_tiles.quotient(entry);
        if (head < params_.batch * params_.heads) {  // the last period need not be full
          tile = tile_of(params_, head, params_.by_m_tiles.remainder(entry));
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

/// Tiles of sequences whose lengths only the device knows, as sequence_order.h puts them; lanes take units in turns.
template <KernelConfig C>
class OrderScheduler {
 public:
  using Source = SequenceOrder;

  __device__ OrderScheduler(const ForwardParams& params, const SequenceOrder& order) : params_(params), order_(order) {}

  __device__ __forceinline__ bool next(Tile& tile) {
    if (mirrored_ >= 0) {
      tile = {mirrored_, sequence_, head_};
      mirrored_ = -1;
      return true;
    }
    const int lane = blockIdx.x / C.cluster;
    const int lanes = gridDim.x / C.cluster;
    const int unit = round_ * lanes + (round_ % 2 == 0 ? lane : lanes - 1 - lane);
    if (unit >= order_.first_unit[params_.sequences] * params_.heads) {
      return false;
    }
    ++round_;
    while (unit >= order_.first_unit[place_ + 1] * params_.heads) {
      ++place_;
    }
    const int units = order_.first_unit[place_ + 1] - order_.first_unit[place_];
    const int within = unit - order_.first_unit[place_] * params_.heads;
    sequence_ = order_.sequence[place_];
    head_ = within / units;
    const int m = within % units;
    const int last = tiles_of<C>(query_rows<C>(params_, sequence_)) - 1 - m;
    tile = {last, sequence_, head_};
    if (kTilesInPairs<C> && m != last) {
      mirrored_ = m;
    }
    return true;
  }

 private:
  const ForwardParams& params_;
  const SequenceOrder& order_;
  int round_ = 0;
  int place_ = 0;
  int sequence_ = 0, head_ = 0;
  int mirrored_ = -1;  // the other tile of a pair, if it is still to come
};

template <KernelConfig C, bool listed, bool ordered>
struct SchedulerFor {
  using type = RoundScheduler<C>;
};
template <KernelConfig C>
struct SchedulerFor<C, true, false> {
  using type = ListScheduler<C>;
};
template <KernelConfig C>
struct SchedulerFor<C, false, true> {
  using type = OrderScheduler<C>;
};

template <KernelConfig C>
using TileScheduler = typename SchedulerFor<C, C.listed, C.ordered>::type;

/// The kernel's last parameter.
template <KernelConfig C>
using TileListOf = typename SchedulerFor<C, C.listed, false>::type::Source;

/// What the schedule is read from: that, or a table in shared memory.
template <KernelConfig C>
using ScheduleOf = typename TileScheduler<C>::Source;

}  // namespace strobe::hopper
