// SPDX-License-Identifier: Apache-2.0
// Where the rows of a cache in a format lie. Plain C++ without std headers, shared by host and device.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/math/row_format.h"
#include "kernels/sequence/cache.h"
#include "kernels/sequence/scales.h"

namespace strobe {

/// The two addresses of a row.
template <typename Byte>
struct StoredRowOf {
  Byte* body;
  Byte* tail;          // null where the format has none
  unsigned scale = 0;  // bits, where the format has it apart
};

using StoredRow = StoredRowOf<const unsigned char>;

/// Where byte `offset` of a row in a format is.
template <StoredFormat F, int offset>
constexpr const unsigned char* stored_byte(const StoredRow& row) {
  return (in_tail(F, offset) ? row.tail : row.body) + offset_in_section(F, offset);
}

/// Distances are in bytes. A place is a row of all heads, counted through the pages, entries or packed rows.
template <typename Byte>
struct StoredCacheOf {
  Byte* rows;
  long long page_stride, row_stride, head_stride;
  long long tails;  // from the first row of a page to its first tail
  Divisor by_page_rows;
  int heads;

  template <StoredFormat F>
  constexpr StoredRowOf<Byte> row(int place, int head) const {
    return row<F>(by_page_rows.quotient(place), by_page_rows.remainder(place), head);
  }

  template <StoredFormat F>
  constexpr StoredRowOf<Byte> row(int page, int in_page, int head) const {
    Byte* const start = rows + page * page_stride;
    StoredRowOf<Byte> row{start + in_page * row_stride + head * head_stride, nullptr};
    if constexpr (F.tail_bytes > 0) {
      row.tail = start + tails + (static_cast<long long>(in_page) * heads + head) * F.tail_bytes;
    }
    return row;
  }
};

using StoredCache = StoredCacheOf<const unsigned char>;

/// Rows that kernels convert where they lie.
struct FormatParams {
  StoredCache cache;
  ScaleParams scales;  // of formats that have them apart: one of all rows of a sequence
};

#ifdef __CUDACC_RTC__

namespace sequence {

/// The bits of the scale of a sequence's rows.
__device__ __forceinline__ unsigned scale_apart(const FormatParams& params, int sequence) {
  return __float_as_uint(__ldg(params.scales.of(sequence, 0)));
}

/// A row of a sequence and of the only head, whose page has that number in the page table: without an address where
/// the page does not exist.
template <StoredFormat F>
__device__ __forceinline__ StoredRow format_row(const CacheParams& table, const FormatParams& params, int number,
                                                int sequence, int row) {
  const int page = existing(table, number);
  if (page == kNoEntry) {
    return {nullptr, nullptr};
  }
  if constexpr (has_scales_apart(F)) {
    StoredRow found = params.cache.template row<F>(page, table.by_page_size.remainder(row), 0);
    found.scale = scale_apart(params, sequence);
    return found;
  } else {
    return params.cache.template row<F>(page, 0);  // whose pages are rows
  }
}

}  // namespace sequence

#endif

}  // namespace strobe
