// SPDX-License-Identifier: Apache-2.0
// K and V as a cache: in pages, or in entries that a list names. Page tables and lists of entries are read on the
// device alone, so numbers that do not exist are found here: their rows are zeros, and never memory of something else.
// The params are plain C++ without std headers, shared by host and device.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/math/element.h"
#include "kernels/sequence/rows.h"

namespace strobe {

struct CacheParams {
  const int* entries;     // a list of entries: [batch]
  const int* page_table;  // pages: [batch, max_pages]
  long long table_batch_stride, table_page_stride;
  int count;             // pages or entries of K and V
  int box_rows;          // of what TMA reads of a page at a time
  Divisor by_page_size;  // rows
};

#ifdef __CUDACC_RTC__

namespace sequence {

constexpr int kNoEntry = -1;

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

/// The place of row `row` of a sequence, padding counted in; it is less than the sequence's used rows.
template <bool in_pages, bool in_entries>
__device__ __forceinline__ CachePlace cache_place(const CacheParams& cache, int sequence, int row) {
  if constexpr (in_pages) {
    return {existing(cache, page_number(cache, sequence, row)), cache.by_page_size.remainder(row)};
  } else {
    return {in_entries ? existing(cache, cache.entries[sequence]) : sequence, row};
  }
}

/// Rows of K and V of one sequence and head, as score/exact_row.h reads them. Those that do not exist are zeros.
template <Element element, bool in_pages, bool in_entries>
class CachedRows {
 public:
  struct Row {
    const unsigned short* elements;
    __device__ __forceinline__ float operator[](int column) const {
      return elements == nullptr ? 0.0F : element_at<element>(elements, column);
    }
  };

  /// `first`: the sequence's first row that exists, behind its padding.
  __device__ __forceinline__ CachedRows(const CacheParams& cache, const Rows& k, const Rows& v, int sequence, int head,
                                        int first)
      : cache_(cache), k_(k), v_(v), sequence_(sequence), head_(head), first_(first) {}

  template <typename ExactRow>
  __device__ __forceinline__ Row key(const ExactRow&, int key) const {
    return {row_of(k_, key)};
  }
  template <typename ExactRow>
  __device__ __forceinline__ Row value(const ExactRow&, int key) const {
    return {row_of(v_, key)};
  }

  /// Null where its page or entry does not exist.
  __device__ __forceinline__ const unsigned short* row_of(const Rows& rows, int key) const {
    const CachePlace place = cache_place<in_pages, in_entries>(cache_, sequence_, first_ + key);
    return place.entry == kNoEntry ? nullptr : rows.row(place.entry, place.row, head_);
  }

 private:
  const CacheParams& cache_;
  const Rows &k_, &v_;
  const int sequence_, head_, first_;
};

}  // namespace sequence

#endif

}  // namespace strobe
