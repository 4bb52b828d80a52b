// SPDX-License-Identifier: Apache-2.0
// Where the boxes of a sequence lie in the tensors' maps, and its blocks in the workspaces.
#pragma once

#include "kernels/sm90/backward/work.h"
#include "kernels/sm90/tile/coordinates.h"

namespace strobe::sm90::backward {

/// Where the first `count` rows of a sequence's Q, dO or dQ lie: those in use to read, those owned to write.
template <ScoreRule R>
__device__ __forceinline__ SequenceStart query_start(const Params& params, const sequence::Sequence& rows, int sequence,
                                                     int count) {
  return sequence_start<R.varlen>(rows.q, count, params.sequences.seqlen_q, params.sequences.cu_seqlens_q != nullptr,
                                  sequence);
}

/// Where the first `count` rows of a sequence's K, V, dK or dV lie: those in use to read, those owned to write.
template <ScoreRule R>
__device__ __forceinline__ SequenceStart key_start(const Params& params, const sequence::Sequence& rows, int sequence,
                                                   int count) {
  return sequence_start<R.varlen>(rows.k, count, params.sequences.seqlen_k, params.sequences.cu_seqlens_k != nullptr,
                                  sequence);
}

/// A tile of `rows` rows, panel by panel, to shared memory, from the tensor's column `first` on; `start` is its first
/// row. The panel at column `last` stands for those after it: see last_panel().
template <int columns, int rows>
__device__ __forceinline__ void load_tile(const TensorMap& map, const SequenceStart& start, int row, int head,
                                          unsigned char* destination, cuda::std::uint64_t& full, int first = 0,
                                          int last = columns) {
#pragma unroll
  for (int panel = 0; panel < panels(columns); ++panel) {
    load_panel<false>(map, start.box(min(first + panel * kPanelColumns, last), row, head),
                      destination + panel * rows * kPanelRowBytes, full);
  }
}

/// 64 rows of a tile of `tile_rows` from shared memory to their tensor, panel by panel, from its column `first` on, as
/// far as it has columns: those before `end`.
template <int columns, int tile_rows>
__device__ __forceinline__ void store_rows(const TensorMap& map, const SequenceStart& start, int row, int head,
                                           const unsigned char* source, int first = 0, int end = columns) {
#pragma unroll
  for (int panel = 0; panel < panels(columns); ++panel) {
    if (first + panel * kPanelColumns >= end) {
      break;
    }
    const Coordinates to = coordinates_of<false>(start.box(first + panel * kPanelColumns, row, head));
    cptx::cp_async_bulk_tensor(cptx::space_global, cptx::space_shared, &map, to.at,
                               source + panel * tile_rows * kPanelRowBytes);
  }
  cptx::cp_async_bulk_commit_group();
}

}  // namespace strobe::sm90::backward
