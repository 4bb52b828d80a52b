// SPDX-License-Identifier: Apache-2.0
// How the tiles of the gradients of captures are shared out. Plain constexpr C++, shared by host and device.
#pragma once

#include "kernels/sm90/backward/bias_gradient/config.h"

namespace strobe::sm90::backward {

/// Tiles of a walk along a diagonal: enough for what ends a walk to be little, few enough for all multiprocessors to
/// have walks of one head.
inline constexpr int kMostWalkTiles = 16;

/// Blocks of queries from one tile of a walk to the next.
inline constexpr int kWalkStep = kKeyWarpgroups;

constexpr int walk_tiles(int key_tiles) { return key_tiles < kMostWalkTiles ? key_tiles : kMostWalkTiles; }

/// Walks that begin at one tile of keys, or left or right of the queries that there are.
constexpr int walks_of_segment(int m_blocks, int key_tiles) {
  return m_blocks + kWalkStep * (walk_tiles(key_tiles) - 1);
}

/// Parts of a sequence's keys that walks do not leave.
constexpr int walk_segments(int key_tiles) { return (key_tiles + walk_tiles(key_tiles) - 1) / walk_tiles(key_tiles); }

constexpr long long walks_of_head(int m_blocks, int key_tiles) {
  return static_cast<long long>(walks_of_segment(m_blocks, key_tiles)) * walk_segments(key_tiles);
}

}  // namespace strobe::sm90::backward
