// SPDX-License-Identifier: Apache-2.0
// The gradient of a bias in tiles, and the sequences and heads that share one.
#pragma once

#include "kernels/score/backward_params.h"

namespace strobe::score {

/// A tile of a plane of the bias's gradient, and who shares it.
struct BiasGradientTile {
  int sequence, head;  // the first
  int sequences, heads;
  int n, m;  // blocks of keys and of queries

  /// `key_tiles`: of a row of tiles; the tiles of a plane are numbered row by row.
  __device__ __forceinline__ static BiasGradientTile of(const BackwardParams& params, const BiasGradientParams& bias,
                                                        int number, int key_tiles) {
    const int plane = number / (key_tiles * params.m_blocks);
    const int within = number - plane * key_tiles * params.m_blocks;
    BiasGradientTile tile{};
    tile.sequence = plane / bias.heads;
    tile.head = plane - tile.sequence * bias.heads;
    tile.sequences = bias.per_batch != 0 ? 1 : params.sequences.sequences;
    tile.heads = bias.per_head != 0 ? 1 : params.heads;
    tile.m = within / key_tiles;
    tile.n = within - tile.m * key_tiles;
    return tile;
  }

  /// visit(sequence, head) for all who share the tile.
  template <typename Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
    for (int b = 0; b < sequences; ++b) {
      for (int h = 0; h < heads; ++h) {
        visit(sequence + b, head + h);
      }
    }
  }
};

}  // namespace strobe::score
