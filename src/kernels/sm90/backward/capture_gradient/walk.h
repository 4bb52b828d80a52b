// SPDX-License-Identifier: Apache-2.0
// Walks along the diagonals of a sequence and head, whose tiles have the same distances between queries and keys.
#pragma once

#include "kernels/sm90/backward/bias_gradient/tile.h"
#include "kernels/sm90/backward/capture_gradient/config.h"

namespace strobe::sm90::backward {

/// Calls visit(tile) for the tiles of this CTA's walks in order, and finish() after each walk. `walks.tiles`: walks of
/// all heads.
template <typename Visit, typename Finish>
__device__ __forceinline__ void for_each_walk(const Params& params, const BiasGradientParams& walks, const Visit& visit,
                                              const Finish& finish) {
  const int key_tiles = bias_key_tiles(params.n_blocks);
  const int length = walk_tiles(key_tiles);
  const int of_segment = walks_of_segment(params.m_blocks, key_tiles);
  const int of_head = of_segment * walk_segments(key_tiles);
  for_each_round(walks.tiles, [&](int number) {
    const int head = number / of_head;
    const int within = number - head * of_head;
    const int segment = within / of_segment;
    BiasGradientTile tile{};
    tile.sequence = head / params.heads;
    tile.head = head - tile.sequence * params.heads;
    tile.sequences = tile.heads = 1;
    tile.n = segment * length;
    tile.m = within - segment * of_segment - kWalkStep * (length - 1);
    const int past = min(tile.n + length, key_tiles);
    const int before = tile.m < 0 ? (kWalkStep - 1 - tile.m) / kWalkStep : 0;
    tile.n += before;
    tile.m += kWalkStep * before;
    for (; tile.n < past && tile.m < params.m_blocks; ++tile.n, tile.m += kWalkStep) {
      visit(tile);
    }
    finish();
  });
}

}  // namespace strobe::sm90::backward
