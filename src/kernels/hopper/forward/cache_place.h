// SPDX-License-Identifier: Apache-2.0
// Where rows of a cache of keys and values lie: see kernels/score/cache.h.
#pragma once

#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/score/cache.h"

namespace strobe::hopper::forward {

using score::CachePlace, score::existing, score::kNoEntry;

/// Whether K and V are not where the batch index says.
template <Config C>
constexpr bool kInCache = C.entries || in_pages(C);

/// Of row `row` of a sequence, padding counted in; less than the sequence's used rows.
template <Config C>
__device__ __forceinline__ CachePlace cache_place(const CacheParams& cache, int sequence, int row) {
  return score::cache_place<in_pages(C), C.entries>(cache, sequence, row);
}

/// A tile's rows of K and V.
template <Config C>
using CachedRows = score::CachedRows<C.rule.element, in_pages(C), C.entries>;

template <Config C>
__device__ __forceinline__ CachedRows<C> cached_rows(const Params& params, const TileWork& work) {
  return {params.cache, params.k, params.v, work.tile.sequence, params.by_heads_per_kv.quotient(work.tile.head),
          work.k.start};
}

}  // namespace strobe::hopper::forward
