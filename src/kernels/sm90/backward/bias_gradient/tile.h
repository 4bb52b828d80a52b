// SPDX-License-Identifier: Apache-2.0
// The bias's gradient in tiles, and the sequences and heads that share one.
#pragma once

#include "kernels/score/bias_gradient.h"
#include "kernels/score/modifiers/block_mask.h"
#include "kernels/sm90/backward/bias_gradient/config.h"
#include "kernels/sm90/backward/work.h"

namespace strobe::sm90::backward {

using score::BiasGradientTile;

/// The pairs of one sequence and head that a warpgroup looks at.
template <Config C>
struct BiasStep {
  Work work;
  int head;
  bool visible;  // some of the pairs are

  __device__ __forceinline__ BiasStep(const Params& params, const BiasGradientTile& tile, int sequence, int head_in,
                                      int warpgroup)
      : work{score::sequence_of<C.rule>(params, sequence)}, head(head_in) {
    work.sequence = sequence;
    work.head_kv = head / params.heads_per_kv;
    work.n = tile.n * kKeyWarpgroups + warpgroup;
    score::find_query_blocks<C.rule, C.block_m, block_n(C)>(params, work);
    visible = tile.m >= work.m_begin && tile.m < work.m_end &&
              score::sees_block<C.rule>(params.blocks, sequence, head, tile.m * C.block_m, work.n * block_n(C));
  }
};

/// Calls visit(number) for those of `count` numbers that are this CTA's. In each round the CTAs take neighbouring ones,
/// another of them each time: else under a mask some would have hidden tiles alone.
template <typename Visit>
__device__ __forceinline__ void for_each_round(int count, const Visit& visit) {
  for (unsigned round = 0; round * gridDim.x < static_cast<unsigned>(count); ++round) {
    const unsigned number = round * gridDim.x + (blockIdx.x + round * (gridDim.x * 3 / 8 | 1U)) % gridDim.x;
    if (number < static_cast<unsigned>(count)) {
      visit(static_cast<int>(number));
    }
  }
}

/// Calls visit(tile) for this CTA's tiles in order.
template <typename Visit>
__device__ __forceinline__ void for_each_bias_tile(const Params& params, const BiasGradientParams& bias,
                                                   const Visit& visit) {
  const int key_tiles = bias_key_tiles(params.n_blocks);
  for_each_round(bias.tiles, [&](int number) { visit(BiasGradientTile::of(params, bias, number, key_tiles)); });
}

}  // namespace strobe::sm90::backward
