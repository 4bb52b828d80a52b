// SPDX-License-Identifier: Apache-2.0
// Tiles by their numbers.
#pragma once

#include "kernels/scheduler/tile.h"
#include "kernels/sm90/scheduler/schedule.h"

namespace strobe::sm90 {

template <Tiling T>
__device__ __forceinline__ Tile tile_of(const TileParams& params, int flat_head, int m) {
  const int outer = params.by_inner.quotient(flat_head);
  const int inner = params.by_inner.remainder(flat_head);
  return sequences_are_inner(T.rule) ? Tile{m, inner, outer, {}} : Tile{m, outer, inner, {}};
}

/// The tile of that number: of a head's, which come together, the last rows come first.
template <Tiling T>
__device__ __forceinline__ Tile numbered_tile(const TileParams& params, int number) {
  return tile_of<T>(params, params.by_m_tiles.quotient(number),
                    params.m_tiles - 1 - params.by_m_tiles.remainder(number));
}

/// Likewise; false where there is none.
template <Tiling T>
__device__ __forceinline__ bool find_tile(const TileParams& params, int number, Tile& tile) {
  if (number >= params.tiles) {
    return false;
  }
  tile = numbered_tile<T>(params, number);
  return true;
}

}  // namespace strobe::sm90
