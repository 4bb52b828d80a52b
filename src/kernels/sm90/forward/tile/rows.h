// SPDX-License-Identifier: Apache-2.0
// Where a tile's rows lie: in the heads, in the tensors' maps, and K's and V's in their cache
// (kernels/sequence/cache.h).
#pragma once

#include "kernels/math/eight_bit.h"
#include "kernels/sequence/cache.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile/work.h"
#include "kernels/sm90/tile/coordinates.h"

namespace strobe::sm90::forward {

using sequence::CachePlace, sequence::existing, sequence::kNoEntry, sequence::page_number;

/// The query head of a tile's row.
template <Config C>
__device__ __forceinline__ int head_of(const TileWork& work, int row) {
  return work.tile.head * C.packed_heads + row % C.packed_heads;
}

/// Counted through the batch.
template <Config C>
__device__ __forceinline__ int head_in_batch(const Params& params, const TileWork& work, int row) {
  return work.tile.sequence * params.tiles.heads * C.packed_heads + head_of<C>(work, row);
}

/// What O holds.
template <Config C>
struct OutputElementOf {
  using Type = unsigned short;
};
template <Config C>
  requires(C.float_output)
struct OutputElementOf<C> {
  using Type = float;
};
template <Config C>
using OutputElement = typename OutputElementOf<C>::Type;

template <Config C>
__device__ __forceinline__ OutputElement<C>* output_row(const Params& params, const TileWork& work, int row) {
  const int batch = params.sequences.cu_seqlens_q != nullptr ? 0 : work.tile.sequence;
  const int in_sequence = work.q.start + row / C.packed_heads;
  if constexpr (C.float_output) {
    return reinterpret_cast<float*>(params.o.data) + params.o.offset(batch, in_sequence, head_of<C>(work, row));
  } else {
    return params.o.row(batch, in_sequence, head_of<C>(work, row));
  }
}

/// Whether K and V are not where the batch index says.
template <Config C>
constexpr bool kInCache = C.entries || in_pages(C);

/// Of row `row` of a sequence, padding counted in; less than the sequence's used rows.
template <Config C>
__device__ __forceinline__ CachePlace cache_place(const CacheParams& cache, int sequence, int row) {
  return sequence::cache_place<in_pages(C), C.entries>(cache, sequence, row);
}

/// A tile's rows of K and V.
template <Config C>
using CachedRows = sequence::CachedRows<C.rule.element, in_pages(C), C.entries>;

template <Config C>
__device__ __forceinline__ CachedRows<C> cached_rows(const Params& params, const TileWork& work) {
  return {params.cache, params.k, params.v, work.tile.sequence, params.by_heads_per_kv.quotient(work.tile.head),
          work.k.start};
}

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
