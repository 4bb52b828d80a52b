// SPDX-License-Identifier: Apache-2.0
// Rows that see no key, and those that are owned and not used.
#pragma once

#include "kernels/score/modifiers/sink.h"
#include "kernels/sm90/forward/store/lse.h"
#include "kernels/sm90/forward/store/pipe.h"

namespace strobe::sm90::forward {

/// Rows of a tile, [first, end), none of which sees a key, by one warpgroup.
template <Config C>
__device__ __forceinline__ void store_nothing(const Params& params, const TileWork& work, int first, int end) {
  constexpr int kColumns = 16 / static_cast<int>(sizeof(OutputElement<C>));
  const int chunks = params.head_dim_v / kColumns;
  for (int i = threadIdx.x % kWarpgroupSize; i < (end - first) * chunks; i += kWarpgroupSize) {
    const int row = first + i / chunks;
    *reinterpret_cast<uint4*>(output_row<C>(params, work, row) + i % chunks * kColumns) = make_uint4(0, 0, 0, 0);
    if (i % chunks == 0) {
      const bool exists = row < work.q.used * C.packed_heads;
      store_lse<C>(params, work, row,
                   exists ? score::sink_log2<C.rule>(params.score, head_of<C>(work, row)) * kLn2 : kMinusInfinity);
    }
  }
}

/// A warpgroup's part of a tile none of whose rows sees a key. Rows behind the last sequence may be more than one
/// tile's: hence the stride.
template <Config C>
__device__ __forceinline__ void store_nothing_visible(const Params& params, const TileWork& work, int warpgroup) {
  const int owned = work.q.owned * C.packed_heads;
  for (int first = work.row_of(warpgroup); first < owned; first += params.tiles.m_tiles * block_m(C)) {
    store_nothing<C>(params, work, first, min(first + kRowsPerWarpgroup, owned));
  }
}

/// A tile, or this CTA's part of one, of which a warpgroup's rows see no key. `parts.split()`: where parts go.
template <Config C, typename Parts>
__device__ __forceinline__ void store_without_keys(const Params& params, const Parts& parts, const TileWork& work,
                                                   int warpgroup) {
  if constexpr (kSplits<C>) {
    store_sharers<C>(params, parts.split(), work, warpgroup);
    if (work.tile.part.slot >= 0) {
      store_empty_part<C>(parts.split(), work, warpgroup);
      return;
    }
  }
  store_nothing_visible<C>(params, work, warpgroup);
}

/// Sorted and split schedules have no tiles without a row in use: the rows behind those, of all sequences, are shared
/// out among the CTAs' warpgroups.
template <Config C>
__device__ __forceinline__ void clear_unused_rows(const Params& params, int warpgroup) {
  const int warpgroups = gridDim.x * C.consumer_warpgroups;
  TileWork work{};
  for (int sequence = params.sequences.seqused_q != nullptr ? 0 : params.sequences.sequences;
       sequence < params.sequences.batch; ++sequence) {
    work.q = sequence::query_rows<C.rule>(params.sequences, sequence);
    work.tile.sequence = sequence;
    const int owned = work.q.owned * C.packed_heads;
    const int unused = tiles_of<tiling(C)>(work.q) * block_m(C);
    for (int first = unused + (blockIdx.x * C.consumer_warpgroups + warpgroup) * kRowsPerWarpgroup; first < owned;
         first += warpgroups * kRowsPerWarpgroup) {
      for (work.tile.head = 0; work.tile.head < params.tiles.heads; ++work.tile.head) {
        store_nothing<C>(params, work, first, min(first + kRowsPerWarpgroup, owned));
      }
    }
  }
}

}  // namespace strobe::sm90::forward
