// SPDX-License-Identifier: Apache-2.0
// Where rows of a cache of keys and values lie: see kernels/sequence/cache.h.
#pragma once

#include "kernels/sequence/cache.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile_work.h"
#include "kernels/sm90/ptx/cuda_ptx.h"

namespace strobe::sm90::forward {

using sequence::CachePlace, sequence::existing, sequence::kNoEntry, sequence::page_number;

/// Whether K and V are not where the batch index says.
template <Config C>
constexpr bool kInCache = C.entries || in_pages(C);

/// `bytes` of zeros in shared memory, by one thread, for WGMMA and TMA: rows that do not exist. A box of them would be
/// zeros as well, but TMA looks up an address even of a box that lies wholly outside its tensor, and was seen to fault
/// where that of a varlen map, which begins before its tensor, is not mapped.
__device__ __forceinline__ void store_zeros(unsigned char* to, int bytes) {
#pragma unroll 1
  for (int i = 0; i < bytes; i += static_cast<int>(sizeof(uint4))) {
    *reinterpret_cast<uint4*>(to + i) = uint4{};
  }
  cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
}

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

}  // namespace strobe::sm90::forward
