// SPDX-License-Identifier: Apache-2.0
// Where rows of a cache of keys and values lie. Page tables and lists of entries are read on the device alone, so
// numbers that do not exist are found here: their rows are zeros, and never memory of something else.
#pragma once

#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/hopper/ptx/cuda_ptx.h"

namespace strobe::hopper::forward {

/// Whether K and V are not where the batch index says.
template <Config C>
constexpr bool kInCache = C.entries || in_pages(C);

constexpr int kNoEntry = -1;

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

/// The number of a page or an entry, or kNoEntry.
__device__ __forceinline__ int existing(const CacheParams& cache, int number) {
  return static_cast<unsigned>(number) < static_cast<unsigned>(cache.count) ? number : kNoEntry;
}

/// Page or entry, and the row in it.
struct CachePlace {
  int entry, row;
};

/// What the page table says of row `row` of a sequence, less than the sequence's used rows: any number.
__device__ __forceinline__ int page_number(const CacheParams& cache, int sequence, int row) {
  const int page = cache.by_page_size.quotient(row);
  return __ldg(cache.page_table + sequence * cache.table_batch_stride + page * cache.table_page_stride);
}

/// Of row `row` of a sequence, padding counted in; less than the sequence's used rows.
template <Config C>
__device__ __forceinline__ CachePlace cache_place(const CacheParams& cache, int sequence, int row) {
  if constexpr (in_pages(C)) {
    return {existing(cache, page_number(cache, sequence, row)), cache.by_page_size.remainder(row)};
  } else {
    return {C.entries ? existing(cache, cache.entries[sequence]) : sequence, row};
  }
}

/// Key `key` of a tile's sequence in K or V; null where its page or entry does not exist.
template <Config C>
__device__ __forceinline__ const unsigned short* cached_row(const Params& params, const Rows& rows,
                                                            const TileWork& work, int head, int key) {
  const CachePlace place = cache_place<C>(params.cache, work.tile.sequence, work.k.start + key);
  return place.entry == kNoEntry ? nullptr : rows.row(place.entry, place.row, head);
}

}  // namespace strobe::hopper::forward
