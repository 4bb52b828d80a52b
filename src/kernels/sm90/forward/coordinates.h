// SPDX-License-Identifier: Apache-2.0
// Where the boxes of a tile lie in the tensors' maps.
#pragma once

#include "kernels/sm90/forward/cache_place.h"
#include "kernels/sm90/forward/tile_work.h"
#include "kernels/sm90/tile/coordinates.h"

namespace strobe::sm90::forward {

/// Of the first `count` rows of Q or O.
template <Config C>
__device__ __forceinline__ SequenceStart query_start(const Params& params, const TileWork& work, int count) {
  return sequence_start<C.rule.varlen>(work.q, count, params.sequences.seqlen_q,
                                       params.sequences.cu_seqlens_q != nullptr, work.tile.sequence);
}

/// Of the keys in use. Batch kNoEntry: of an entry that does not exist.
template <Config C>
__device__ __forceinline__ SequenceStart key_start(const Params& params, const TileWork& work) {
  const int entry = C.entries ? existing(params.cache, params.cache.entries[work.tile.sequence]) : work.tile.sequence;
  return sequence_start<C.rule.varlen>(work.k, work.k.used, params.sequences.seqlen_k,
                                       params.sequences.cu_seqlens_k != nullptr, entry);
}

/// Keys of a packed 8-bit V that lie at multiples of as many columns: strobe/quantize.h.
constexpr int kValueKeys = 32;

template <Config C>
__device__ __forceinline__ bool is_packed_value(const Params& params) {
  return C.rule.varlen && params.sequences.cu_seqlens_k != nullptr;
}

/// Of columns of a packed 8-bit V from `key` on: the keys in use, padded to 32, and none behind those.
template <Config C>
__device__ __forceinline__ BoxStart packed_value_box(const Params& params, const TileWork& work, int key, int head) {
  const int bound = (params.sequences.seqlen_k + kValueKeys - 1) / kValueKeys;
  const int count = (work.k.used + kValueKeys - 1) / kValueKeys;
  return {.column = (bound - count) * kValueKeys + key,
          .row = 0,
          .offset = work.k.start / kValueKeys + work.tile.sequence + count,
          .head = head,
          .batch = 0};
}

/// A box of Q or O that begins with a tile's row.
template <Config C>
__device__ __forceinline__ BoxStart query_box(const SequenceStart& start, int column, int row, int head) {
  return start.box(column, row / C.packed_heads, head * C.packed_heads + row % C.packed_heads);
}

}  // namespace strobe::sm90::forward
