// SPDX-License-Identifier: Apache-2.0
// A tile of dQ as numbers: its queries, and the tiles of keys that they see.
#pragma once

#include "kernels/score/modifiers/block_mask.h"
#include "kernels/sm90/backward/query_gradient/config.h"
#include "kernels/sm90/backward/visible_blocks.h"

namespace strobe::sm90::backward {

/// Tiles of dS along the queries of the longest sequence.
template <QueryGradientConfig C>
__device__ __forceinline__ int query_tiles(const Params& params) {
  return params.m_blocks * (C.block_m / kScoreTile);
}

/// The number of this CTA's tile, whose columns CTAs that follow each other have.
template <QueryGradientConfig C>
__device__ __forceinline__ int query_tile_number() {
  return static_cast<int>(blockIdx.x) / C.column_parts;
}

/// The first of this CTA's columns of dQ.
template <QueryGradientConfig C>
__device__ __forceinline__ int first_column() {
  return static_cast<int>(blockIdx.x) % C.column_parts * C.head_dim;
}

/// One tile of dQ as numbers.
template <QueryGradientConfig C>
struct QueryTile : sequence::Sequence {
  int m_first, launch_head, head, sequence;
  sequence::KeyBlocks tiles;  // of all its warpgroups

  /// CTAs of one head after those of the head before, the longest first.
  __device__ __forceinline__ static QueryTile of(const Params& params, int number) {
    const int per_head = query_groups(C, params.m_blocks);
    const int launch_head = number / per_head;
    int sequence = 0;
    int head = 0;
    if constexpr (C.rule.bias) {
      const int launch_head_kv = launch_head / params.heads_per_kv;
      const int flat = params.first_head_kv + launch_head_kv;
      sequence = sequence_of_head<C.rule>(params, flat);
      const int head_kv = head_in_sequence<C.rule>(params, flat, sequence);
      head = (head_kv - launch_head_kv) * params.heads_per_kv + launch_head;
    } else {
      const int flat = params.first_head_kv * params.heads_per_kv + launch_head;
      sequence = flat / params.heads;
      head = flat - sequence * params.heads;
    }
    QueryTile tile{score::sequence_of<C.rule>(params, sequence)};
    tile.m_first = (per_head - 1 - (number - launch_head * per_head)) * C.consumer_warpgroups;
    tile.launch_head = launch_head;
    tile.head = head;
    tile.sequence = sequence;
    tile.tiles = {params.n_blocks, 0};
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      const sequence::KeyBlocks own = tile.key_tiles(params, tile.m_first + w);
      if (own.begin < own.end) {
        tile.tiles = {min(tile.tiles.begin, own.begin), max(tile.tiles.end, own.end)};
      }
    }
    return tile;
  }

  /// Key tiles of this launch that some query of a block of 64 sees: those of which the backward wrote dS.
  __device__ __forceinline__ sequence::KeyBlocks key_tiles(const Params& params, int m) const {
    const int first = m * kScoreTile;
    const int last = min(first + kScoreTile, q.used) - 1;
    if (last < first) {
      return {0, 0};
    }
    const int first_key = sequence::first_positions<C.rule>(params, sequence).k;
    const sequence::KeyBlocks seen = sequence::key_blocks<kScoreTile>(
        sequence::visible_keys<C.rule>(params.visibility, *this, first + diagonal, first_key),
        sequence::visible_keys<C.rule>(params.visibility, *this, last + diagonal, first_key));
    return {max(seen.begin, params.first_key_block), min(seen.end, params.first_key_block + params.key_blocks)};
  }
};

/// Key tiles of one tile of dQ.
template <QueryGradientConfig C>
class KeyTiles {
 public:
  __device__ __forceinline__ KeyTiles(const Params& params, const QueryTile<C>& tile) : params_(params), tile_(tile) {}

  /// The first from n on that the block mask shows, before `end`; `end` where there is none. By whole warps.
  __device__ __forceinline__ int from(int n, int end) {
    if constexpr (C.rule.block_mask != 0) {
      static_assert(C.rule.block_mask % (C.consumer_warpgroups * kScoreTile) == 0);
      return search_.find(end, n, end, [&](int tile) {
        return score::sees_block<C.rule>(params_.blocks, tile_.sequence, tile_.head, tile_.m_first * kScoreTile,
                                         tile * kScoreTile);
      });
    } else {
      return min(n, end);
    }
  }

 private:
  const Params& params_;
  const QueryTile<C>& tile_;
  BlockSearch search_;
};

}  // namespace strobe::sm90::backward
