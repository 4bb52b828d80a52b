// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernels that write and read rows in a format. Plain C++ without std headers, shared by
// host and device.
#pragma once

#include "kernels/auxiliary/append_params.h"
#include "kernels/math/element.h"
#include "kernels/sequence/stored_cache.h"

namespace strobe::auxiliary {

/// Rows are written to the places of the same number, or behind those that sequences have, or read.
enum class RowTransfer : unsigned char { encode, append, decode };

struct CodedRowsConfig {
  StoredFormat format;
  Element element = Element::fp32;  // of the columns
  RowTransfer transfer = RowTransfer::encode;

  bool operator==(const CodedRowsConfig&) const = default;
};

constexpr int kCodedRowsThreads = 128;

/// Columns as floats, a row of all heads at a place of the cache.
struct PlainRows {
  void* data;
  long long batch_stride, row_stride, head_stride;  // elements
  Divisor by_batch_rows;
};

struct CodedRowsParams {
  StoredCacheOf<unsigned char> cache;
  PlainRows columns;
  Divisor by_heads;
  AppendParams append;  // of appends: where a row goes, k.to_batch and k.to_row counting places
};

}  // namespace strobe::auxiliary
