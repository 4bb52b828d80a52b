// SPDX-License-Identifier: Apache-2.0
// Which tiles of Q a CTA computes, in which order. Every role walks the same list by itself, so the
// schedule needs no memory, no atomics and no broadcast, and the same call always does the same.
#pragma once

#include "kernels/scheduler/split_scheduler.h"
#include "kernels/sequence/params.h"
#include "kernels/sm90/scheduler/schedule.h"
#include "kernels/sm90/scheduler/sequence_order.h"
#include "kernels/sm90/scheduler/taken_tiles.h"
#include "kernels/sm90/scheduler/tile_number.h"

namespace strobe::sm90 {

/// Tiles of one length: dealt in rounds, the tiles of a head together.
template <Tiling T>
class RoundScheduler {
 public:
  using Source = NoTileList;

  /// `params`: the kernel's.
  template <typename Params>
  __device__ RoundScheduler(const Params& params, const NoTileList&)
      : params_(params.tiles), index_(blockIdx.x), workers_(gridDim.x) {}

  /// False when there are no more.
  __device__ __forceinline__ bool next(Tile& tile) {
    if (index_ >= params_.tiles) {
      return false;
    }
    tile = numbered_tile<T>(params_, index_);
    index_ = index_ + workers_;
    return true;
  }

 private:
  const TileParams& params_;
  int index_;
  const int workers_;
};

/// Tiles dealt out by the host.
template <Tiling T>
class DealtScheduler {
 public:
  using Source = TileList;

  template <typename Params>
  __device__ DealtScheduler(const Params& params, const TileList& list)
      : params_(params.tiles),
        flat_heads_(params.sequences.batch * params.tiles.heads),
        list_(list),
        worker_(blockIdx.x),
        at_(list.first[worker_]) {}

  __device__ __forceinline__ bool next(Tile& tile) {
    for (; period_ < list_.periods; ++period_, at_ = list_.first[worker_]) {
      while (at_ < list_.first[worker_ + 1]) {
        const int entry = list_.tiles[at_++];
        const int head = period_ * list_.period_heads + params_.by_m_tiles.quotient(entry);
        if (head < flat_heads_) {  // the last period need not be full
          tile = tile_of<T>(params_, head, params_.by_m_tiles.remainder(entry));
          return true;
        }
      }
    }
    return false;
  }

 private:
  const TileParams& params_;
  const int flat_heads_;
  const TileList& list_;
  const int worker_;
  int at_;
  int period_ = 0;
};

/// Tiles of sequences whose lengths only the device knows, as sequence_order.h puts them; CTAs take units in turns.
template <Tiling T>
class SortedScheduler {
 public:
  using Source = SequenceOrder<T.table_sequences>;

  template <typename Params>
  __device__ SortedScheduler(const Params& params, const Source& order)
      : params_(params.tiles), sequences_(params.sequences), order_(order) {}

  __device__ __forceinline__ bool next(Tile& tile) {
    if (mirrored_ >= 0) {
      tile = {mirrored_, sequence_, head_};
      mirrored_ = -1;
      return true;
    }
    const int worker = blockIdx.x;
    const int workers = gridDim.x;
    const int unit = round_ * workers + (round_ % 2 == 0 ? worker : workers - 1 - worker);
    if (unit >= order_.first_unit[sequences_.sequences] * params_.heads) {
      return false;
    }
    ++round_;
    const int place = place_of(unit);
    const int units = order_.first_unit[place + 1] - order_.first_unit[place];
    const int within = unit - order_.first_unit[place] * params_.heads;
    sequence_ = order_.sequence[place];
    head_ = within / units;
    const int m = within % units;
    const int last = tiles_of<T>(sequence::query_rows<T.rule>(sequences_, sequence_)) - 1 - m;
    tile = {last, sequence_, head_};
    if (kTilesInPairs<T> && m != last) {
      mirrored_ = m;
    }
    return true;
  }

 private:
  /// The place of a unit's sequence in the order. Walking takes fewer registers where the next place is near; tiles of
  /// wide heads are few for each sequence. log: latent-bisected-places
  __device__ __forceinline__ int place_of(int unit) {
    if constexpr (T.bisects) {
      int place = 0;
      int end = sequences_.sequences;  // of those that may have it
      while (end - place > 1) {
        const int middle = (place + end) / 2;
        (order_.first_unit[middle] * params_.heads <= unit ? place : end) = middle;
      }
      return place;
    } else {
      while (unit >= order_.first_unit[place_ + 1] * params_.heads) {
        ++place_;
      }
      return place_;
    }
  }

  const TileParams& params_;
  const SequenceParams& sequences_;
  const Source& order_;
  int round_ = 0;
  int place_ = 0;
  int sequence_ = 0, head_ = 0;
  int mirrored_ = -1;  // the other tile of a pair, if it is still to come
};

template <Tiling T, Schedule schedule>
struct SchedulerOf {
  using type = RoundScheduler<T>;
};
template <Tiling T>
struct SchedulerOf<T, Schedule::dealt> {
  using type = DealtScheduler<T>;
};
template <Tiling T>
struct SchedulerOf<T, Schedule::sorted> {
  using type = SortedScheduler<T>;
};
template <Tiling T>
struct SchedulerOf<T, Schedule::taken> {
  using type = HandedTiles<T>;
};
template <Tiling T>
struct SchedulerOf<T, Schedule::split> {
  using type = SplitScheduler<T>;
};

template <Tiling T>
using TileScheduler = typename SchedulerOf<T, T.schedule>::type;

/// The same tiles once more, when a CTA has been through all of its own.
template <Tiling T, Schedule schedule>
struct SecondSchedulerOf {
  using type = TileScheduler<T>;
};
template <Tiling T>
struct SecondSchedulerOf<T, Schedule::taken> {
  using type = OwnedTiles<T>;
};
/// Of a warp that hands tiles out where others are handed them, if it `leads`.
template <Tiling T, Schedule schedule, bool leads>
struct LeadingSchedulerOf {
  using type = TileScheduler<T>;
};
template <Tiling T>
struct LeadingSchedulerOf<T, Schedule::taken, true> {
  using type = TileTaker<T>;
};
template <Tiling T, bool leads>
using LeadingScheduler = typename LeadingSchedulerOf<T, T.schedule, leads>::type;

template <Tiling T>
using SecondScheduler = typename SecondSchedulerOf<T, T.schedule>::type;

/// The kernel's last parameter.
template <Schedule schedule>
struct TileListOf {
  using type = NoTileList;
};
template <>
struct TileListOf<Schedule::dealt> {
  using type = TileList;
};
template <>
struct TileListOf<Schedule::taken> {
  using type = TakenTiles;
};
template <>
struct TileListOf<Schedule::split> {
  using type = SplitParams;
};

}  // namespace strobe::sm90
