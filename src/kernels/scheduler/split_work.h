// SPDX-License-Identifier: Apache-2.0
// Split schedules: how many blocks of keys each tile has, and how they are shared out, by the lengths that the device
// finds.
#pragma once

#include "kernels/scheduler/prefix_sums.h"
#include "kernels/scheduler/split.h"
#include "kernels/scheduler/tile.h"
#include "kernels/scheduler/tile_rows.h"

namespace strobe {

/// Key blocks of a tile, or their segments; 1 where it sees none, as its result must be written all the same.
template <Tiling T>
__device__ __forceinline__ int blocks_of_tile(const VisibilityParams& visibility, const sequence::Sequence& sequence,
                                              int m, int first_key) {
  const sequence::KeyBlocks blocks = key_blocks<T>(visibility, sequence, m * T.block_m, T.block_m, first_key);
  if constexpr (T.segment_blocks > 0) {
    return blocks.end > blocks.begin ? (blocks.end - 1) / T.segment_blocks - blocks.begin / T.segment_blocks + 1 : 1;
  } else {
    return max(blocks.end - blocks.begin, 1);
  }
}

/// Tiles of one head of a sequence, and the blocks of keys that all of them see.
struct HeadWork {
  int tiles, blocks;
};

template <Tiling T, typename Params>
__device__ __forceinline__ HeadWork work_of_head(const Params& params, int index) {
  const sequence::Sequence sequence = sequence::sequence_of<T.rule>(params, index);
  const int first_key = sequence::first_positions<T.rule>(params, index).k;
  HeadWork work{tiles_of<T>(sequence.q), 0};
#pragma unroll 1
  for (int m = work.tiles - 1; m >= 0; --m) {
    work.blocks += blocks_of_tile<T>(params.visibility, sequence, m, first_key);
  }
  return work;
}

/// Whether parts of tiles may be what CTAs are given. Not where heads come outermost, as those are to be read together.
template <Tiling T>
constexpr bool kMayHaveWholeParts = T.rule.varlen && T.segment_blocks == 0 && !T.heads_outermost;

template <Tiling T>
__device__ __forceinline__ bool has_whole_parts(const SplitWork& work) {
  return kMayHaveWholeParts<T> && work.most_blocks > 0;
}

__device__ __forceinline__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// What CTAs have if they have whole parts of tiles.
struct WholeParts {
  int parts_of_cta, most_blocks;  // 0: they do not
};

/// One part of one tile for each CTA, or some whole tiles, where the longest such share is less than a sixth above an
/// even share of all blocks. A CTA that goes on from one tile to another waits for its first keys once more, and each
/// tile that it shares leaves parts. By a warp. `blocks`: of sequences that have one tile of a head at most.
__device__ __forceinline__ WholeParts whole_parts(const int* blocks, int sequences, int heads) {
  int sum = 0;
  int longest = 0;
  int tiles = 0;
#pragma unroll 1
  for (int index = threadIdx.x; index < sequences; index += kSumWarp) {
    sum += blocks[index];
    longest = max(longest, blocks[index]);
    tiles += blocks[index] > 0 ? 1 : 0;
  }
  const int ctas = gridDim.x;
  const int even = max(ceil_div(__reduce_add_sync(kSumLanes, sum) * heads, ctas), 1);
  const int most_of_cta = even + even / 6;
  tiles = __reduce_add_sync(kSumLanes, tiles) * heads;
  if (tiles > ctas) {
    longest = __reduce_max_sync(kSumLanes, longest);
    const int tiles_of_cta = ceil_div(tiles, ctas);
    return tiles_of_cta * longest <= most_of_cta ? WholeParts{tiles_of_cta, longest} : WholeParts{0, 0};
  }
#pragma unroll 1
  for (int most = even; most <= most_of_cta; most += even / 32 + 1) {
    int parts = 0;
#pragma unroll 1
    for (int index = threadIdx.x; index < sequences; index += kSumWarp) {
      parts += ceil_div(blocks[index], most);
    }
    if (__reduce_add_sync(kSumLanes, parts) * heads <= ctas) {
      return {1, most};
    }
  }
  return {0, 0};
}

/// By all threads of the CTA; `work` is ready after a __syncthreads. No key is on its way meanwhile: so it is short.
template <Tiling T, typename Params>
__device__ __forceinline__ void make_split_work(const Params& params, const SplitParams& split, SplitWork& work) {
  const int sequences = params.sequences.sequences;
  if (threadIdx.x == 0) {
    work.params = split;
    work.visibility = params.visibility;
    if constexpr (!T.rule.varlen) {
      work.blocks_of_head = work_of_head<T>(params, 0).blocks;
    }
  }
  if constexpr (T.rule.varlen) {
    bool one_tile_each = true;
#pragma unroll 1
    for (int index = threadIdx.x; index < sequences; index += T.threads) {
      const HeadWork of_head = work_of_head<T>(params, index);
      work.first_block[index] = of_head.blocks;
      one_tile_each = one_tile_each && of_head.tiles <= 1;
    }
    one_tile_each = __syncthreads_and(one_tile_each) != 0;
    if (threadIdx.x >= kSumWarp) {
      return;
    }
    if constexpr (kMayHaveWholeParts<T>) {
      const WholeParts whole =
          one_tile_each ? whole_parts(work.first_block, sequences, params.tiles.heads) : WholeParts{0, 0};
      if (whole.most_blocks > 0) {
        __syncwarp();
#pragma unroll 1
        for (int index = threadIdx.x; index < sequences; index += kSumWarp) {
          work.first_block[index] = ceil_div(work.first_block[index], whole.most_blocks);
        }
        __syncwarp();
      }
      if (threadIdx.x == 0) {
        work.parts_of_cta = whole.parts_of_cta;
        work.most_blocks = whole.most_blocks;
      }
    }
    make_prefix_sums(work.first_block, sequences);
  }
}

}  // namespace strobe
