// SPDX-License-Identifier: Apache-2.0
// Rules with query_values: rows of the second query and of Q on their way to shared memory, side by side.
#pragma once

#include "kernels/sm80/forward/tile_work.h"
#include "kernels/sm80/tile/copy.h"

namespace strobe::sm80::forward {

/// Starts the copy of one warp's rows to `tile`, by `threads` threads; what does not exist becomes zeros.
template <Config C, int threads>
__device__ __forceinline__ void start_joined_queries(const Params& params, const TileWork& work, uint32_t tile,
                                                     int first_row) {
  using Tile = QTile<C>;
  using Lane = CopyLane<Tile, threads>;
#pragma unroll 1
  for (int i = 0; i < C.rows_per_warp && i + Lane::row() < C.rows_per_warp; i += Lane::kRowsAtATime) {
    const int row = first_row + i + Lane::row();
    const bool has_row = row < used_rows<C>(work);
    const unsigned short* const q = has_row ? query_row<C>(params.q, params, work, row) : nullptr;
    const unsigned short* const qv = has_row ? query_row<C>(params.qv, params, work, row) : nullptr;
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      const int column = (panel * Tile::kChunks + Lane::chunk()) * kChunkElements;
      const int own = first_own_column(C, params);
      const bool exists = has_row && column < params.head_dim;
      const unsigned short* const from = column < own ? qv + column : q + (column - own);
      ptx::cp_async_16(tile + Lane::offset(i) + panel * Tile::kPanelBytes, exists ? from : params.q.data,
                       exists ? kChunkBytes : 0);
    }
  }
}

}  // namespace strobe::sm80::forward
