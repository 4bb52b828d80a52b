// SPDX-License-Identifier: Apache-2.0
// Rows of a sequence that lie in the pages of a pool, in any order.
#pragma once

#include <cstdint>

namespace strobe::cpu {

/// Key j of the sequence is row (first + j) % size of page table[(first + j) / size]. Entries of the table that belong
/// to no key are never read.
struct PagedRows {
  const std::int32_t* table = nullptr;  // of this sequence; null: the rows are not in pages
  std::int64_t size = 1;                // rows of a page
  std::int64_t page_stride = 0;         // elements from a page to the next one of the pool
  std::int64_t first = 0;               // the sequence's first row: those before it are left padding

  bool given() const { return table != nullptr; }

  /// Of a key, in elements from the pool's start.
  std::int64_t offset(std::int64_t key, std::int64_t row_stride) const {
    const std::int64_t row = first + key;
    return table[row / size] * page_stride + row % size * row_stride;
  }

  /// Whether keys [key, key + count) lie one row_stride apart: in one page, or not in pages.
  bool holds_together(std::int64_t key, std::int64_t count) const {
    return !given() || count == 0 || (first + key) / size == (first + key + count - 1) / size;
  }
};

}  // namespace strobe::cpu
