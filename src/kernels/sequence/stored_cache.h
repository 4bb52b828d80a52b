// SPDX-License-Identifier: Apache-2.0
// Where the rows of a cache in a format lie. Plain C++ without std headers, shared by host and device.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/math/row_format.h"

namespace strobe {

/// The two addresses of a row.
template <typename Byte>
struct StoredRowOf {
  Byte* body;
  Byte* tail;  // null where the format has none
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
    const int page = by_page_rows.quotient(place);
    const int in_page = by_page_rows.remainder(place);
    Byte* const start = rows + page * page_stride;
    StoredRowOf<Byte> row{start + in_page * row_stride + head * head_stride, nullptr};
    if constexpr (F.tail_bytes > 0) {
      row.tail = start + tails + (static_cast<long long>(in_page) * heads + head) * F.tail_bytes;
    }
    return row;
  }
};

using StoredCache = StoredCacheOf<const unsigned char>;

}  // namespace strobe
