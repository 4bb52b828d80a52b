// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernel that reads listed rows in a format. Plain C++ without std headers, shared by host
// and device.
#pragma once

#include "kernels/math/element.h"
#include "kernels/sequence/stored_cache.h"

namespace strobe::auxiliary {

struct ListedRowsConfig {
  StoredFormat format;
  Element element = Element::bf16;  // of what is written

  bool operator==(const ListedRowsConfig&) const = default;
};

constexpr int kListedRowsThreads = 256;
constexpr int kListedRows = 32;  // of a CTA
// Rows behind those of a list that forwards read with them, of a block of keys: they become zeros.
constexpr int kListedRowsBehind = 256;

struct ListedRowsParams {
  StoredCache cache;
  const int* places;  // [lists of this launch, width]
  const int* counts;  // [lists of this launch]
  int width;
  int lists;  // of a query: 1, or as many as heads, of each of which a list has one
  int blocks;
  Divisor by_blocks;      // of kListedRows rows, of a list
  Divisor by_row_pieces;  // of kPieceColumns columns, of all of a list's heads
  unsigned short* to;     // [lists of this launch, width, heads of a list, columns]
};

}  // namespace strobe::auxiliary
