// SPDX-License-Identifier: Apache-2.0
// Where the boxes of a tile lie in the tensors' maps.
#pragma once

#include "kernels/hopper/forward/cache_place.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/hopper/tile/coordinates.h"

namespace strobe::hopper::forward {

/// Rows of 8-bit operands, whose lengths may be wrong: none lies before the tensor.
template <Config C>
__device__ __forceinline__ score::SequenceRows inside(score::SequenceRows rows) {
  if constexpr (eight_bit(C) && C.rule.varlen) {
    rows.start = max(rows.start, 0);
  }
  return rows;
}

/// Of the first `count` rows of Q or O.
template <Config C>
__device__ __forceinline__ SequenceStart query_start(const Params& params, const TileWork& work, int count) {
  return sequence_start<C.rule.varlen>(inside<C>(work.q), count, params.sequences.seqlen_q,
                                       params.sequences.cu_seqlens_q != nullptr, work.tile.sequence);
}

/// Of the keys in use. Batch kNoEntry: of an entry that does not exist.
template <Config C>
__device__ __forceinline__ SequenceStart key_start(const Params& params, const TileWork& work) {
  const int entry = C.entries ? existing(params.cache, params.cache.entries[work.tile.sequence]) : work.tile.sequence;
  return sequence_start<C.rule.varlen>(inside<C>(work.k), work.k.used, params.sequences.seqlen_k,
                                       params.sequences.cu_seqlens_k != nullptr, entry);
}

/// Keys of a packed 8-bit V that lie at multiples of as many columns: strobe/quantize.h.
constexpr int kValueKeys = 32;

/// Of the columns of an 8-bit V that hold the keys in use, padded to 32: boxes reach none behind those.
struct ValueStart {
  int column, offset, batch;

  __device__ __forceinline__ BoxStart box(int key, int head) const {
    return {.column = column + key, .row = 0, .offset = offset, .head = head, .batch = batch};
  }
};

template <Config C>
__device__ __forceinline__ ValueStart value_start(const Params& params, const TileWork& work) {
  ValueStart start{0, 0, work.tile.sequence};
  if constexpr (C.rule.varlen) {
    if (params.sequences.cu_seqlens_k != nullptr) {
      const int bound = (params.sequences.seqlen_k + kValueKeys - 1) / kValueKeys;
      const int count = (work.k.used + kValueKeys - 1) / kValueKeys;
      start = {(bound - count) * kValueKeys, max(work.k.start, 0) / kValueKeys + work.tile.sequence + count, 0};
    }
  }
  return start;
}

/// A box of Q or O that begins with a tile's row.
template <Config C>
__device__ __forceinline__ BoxStart query_box(const SequenceStart& start, int column, int row, int head) {
  return start.box(column, row / C.packed_heads, head * C.packed_heads + row % C.packed_heads);
}

}  // namespace strobe::hopper::forward
