// SPDX-License-Identifier: Apache-2.0
// Where the boxes of a sequence lie in the tensors' maps, and its blocks in the workspaces.
#pragma once

#include "kernels/hopper/backward/work.h"
#include "kernels/hopper/tile/coordinates.h"

namespace strobe::hopper::backward {

/// Of the first `count` rows of a sequence's Q, dO or dQ: those in use to read, those owned to write.
template <ScoreRule R>
__device__ __forceinline__ SequenceStart query_start(const Params& params, const score::Sequence& rows, int sequence,
                                                     int count) {
  return sequence_start<R.varlen>(rows.q, count, params.sequences.seqlen_q, params.sequences.cu_seqlens_q != nullptr,
                                  sequence);
}

/// Likewise of K, V, dK or dV.
template <ScoreRule R>
__device__ __forceinline__ SequenceStart key_start(const Params& params, const score::Sequence& rows, int sequence,
                                                   int count) {
  return sequence_start<R.varlen>(rows.k, count, params.sequences.seqlen_k, params.sequences.cu_seqlens_k != nullptr,
                                  sequence);
}

/// Block 0 of a sequence in the workspaces of rows.
template <ScoreRule R>
__device__ __forceinline__ long long first_block_of(const Params& params, int sequence, int head, int block_m) {
  const int first =
      R.varlen ? score::first_query_block(params.sequences, sequence, block_m) : sequence * params.m_blocks;
  return static_cast<long long>(head) * params.query_blocks + first;
}

/// A tile of `rows` rows, panel by panel, to shared memory; `start` is its first row.
template <int columns, int rows>
__device__ __forceinline__ void load_tile(const TensorMap& map, const SequenceStart& start, int row, int head,
                                          unsigned char* destination, cuda::std::uint64_t& full) {
#pragma unroll
  for (int panel = 0; panel < panels(columns); ++panel) {
    load_panel<false>(map, start.box(panel * kPanelColumns, row, head), destination + panel * rows * kPanelRowBytes,
                      full);
  }
}

/// The way back: 64 rows out of a tile of `tile_rows`.
template <int columns, int tile_rows>
__device__ __forceinline__ void store_rows(const TensorMap& map, const SequenceStart& start, int row, int head,
                                           const unsigned char* source) {
#pragma unroll
  for (int panel = 0; panel < panels(columns); ++panel) {
    const Coordinates to = coordinates_of<false>(start.box(panel * kPanelColumns, row, head));
    cptx::cp_async_bulk_tensor(cptx::space_global, cptx::space_shared, &map, to.at,
                               source + panel * tile_rows * kPanelRowBytes);
  }
  cptx::cp_async_bulk_commit_group();
}

/// Zeros in rows [first, end) of one head, by a group of `threads` of which this thread is number `thread`.
__device__ __forceinline__ void clear_rows(const Rows& rows, int columns, int batch, int head, int first, int end,
                                           int thread, int threads) {
  const int chunks = columns / 8;  // of 16 bytes
  for (long long i = thread; i < static_cast<long long>(max(end - first, 0)) * chunks; i += threads) {
    *reinterpret_cast<uint4*>(rows.row(batch, first + i / chunks, head) + i % chunks * 8) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace strobe::hopper::backward
