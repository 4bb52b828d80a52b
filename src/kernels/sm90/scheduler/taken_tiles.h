// SPDX-License-Identifier: Apache-2.0
// Tiles whose lengths no one knows before the kernel runs: a CTA that is done takes the next one. Which CTA computes a
// tile does not change what it computes.
//
// One warp of a CTA takes, and hands tiles to the others by a ring in shared memory:
//   full[slot]    1: the warp that takes               the others wait    the slot has a tile's number
//   empty[slot]   every lane of the others' warps      it waits           all of them have read it
#pragma once

#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/scheduler/tile_number.h"
#include "kernels/sm90/tile/pipeline.h"

namespace strobe::sm90 {

__device__ __forceinline__ uint64_t& barrier_of(unsigned long long& barrier) {
  return reinterpret_cast<uint64_t&>(barrier);
}

/// By one thread, before anyone uses it. `readers`: warps that are handed tiles.
__device__ __forceinline__ void init(TileRing& ring, const TakenTiles& taken, int readers) {
  for (int slot = 0; slot < TileRing::kSlots; ++slot) {
    cuda::ptx::mbarrier_init(&barrier_of(ring.full[slot]), 1);
    cuda::ptx::mbarrier_init(&barrier_of(ring.empty[slot]), readers * kWarpSize);
  }
  ring.taken = taken;
}

/// Tiles as they are handed to a warp.
template <Tiling T>
class HandedTiles {
 public:
  using Source = TileRing;

  template <typename Params>
  __device__ HandedTiles(const Params& params, const TileRing& ring)
      : params_(params.tiles), ring_(const_cast<TileRing&>(ring)) {}

  /// By whole warps. False when there are no more.
  __device__ __forceinline__ bool next(Tile& tile) {
    wait<T.debug>(barrier_of(ring_.full[at_.stage]), at_.parity);
    const int number = ring_.tile[at_.stage];
    cuda::ptx::mbarrier_arrive(&barrier_of(ring_.empty[at_.stage]));
    at_.advance();
    return find_tile<T>(params_, number, tile);
  }

 private:
  const TileParams& params_;
  TileRing& ring_;
  RingPosition<TileRing::kSlots> at_;
};

/// Takes tiles and hands them to the others. The first is the CTA's own; each other is asked for while the one before
/// is computed.
template <Tiling T>
class TileTaker {
 public:
  template <typename Params>
  __device__ TileTaker(const Params& params, const TileRing& ring)
      : params_(params.tiles), ring_(const_cast<TileRing&>(ring)), number_(blockIdx.x) {}

  /// By a whole warp. False when there are no more.
  __device__ __forceinline__ bool next(Tile& tile) {
    const int number = __shfl_sync(kFullWarp, number_, 0);
    wait<T.debug>(barrier_of(ring_.empty[at_.stage]), at_.parity);
    if (threadIdx.x % kWarpSize == 0) {
      number_ = gridDim.x + atomicAdd(ring_.taken.count, 1U);
      if (number < params_.tiles) {
        ring_.taken.owners[number] = static_cast<unsigned short>(blockIdx.x);
      }
      ring_.tile[at_.stage] = number;
      cuda::ptx::mbarrier_arrive(&barrier_of(ring_.full[at_.stage]));
    }
    __syncwarp();
    at_.advance();
    return find_tile<T>(params_, number, tile);
  }

 private:
  const TileParams& params_;
  TileRing& ring_;
  RingPosition<TileRing::kSlots> at_{0, 1};
  int number_;  // of the first lane: the next
};

/// Tiles that this CTA has taken, when it has been through them.
template <Tiling T>
class OwnedTiles {
 public:
  template <typename Params>
  __device__ OwnedTiles(const Params& params, const TileRing& ring) : params_(params.tiles), taken_(ring.taken) {}

  __device__ __forceinline__ bool next(Tile& tile) {
    while (number_ < params_.tiles && taken_.owners[number_] != blockIdx.x) {
      ++number_;
    }
    return find_tile<T>(params_, number_++, tile);
  }

 private:
  const TileParams& params_;
  const TakenTiles taken_;
  int number_ = 0;
};

}  // namespace strobe::sm90
