// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernel that converts a cache in 8 bits. Plain C++ without std headers, shared by host and
// device.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/math/element.h"
#include "kernels/sequence/cache.h"
#include "kernels/sequence/rows.h"
#include "kernels/sequence/scales.h"

namespace strobe::auxiliary {

struct ConvertCacheConfig {
  Element stored = Element::int8;   // or e4m3
  Element element = Element::bf16;  // or fp16

  bool operator==(const ConvertCacheConfig&) const = default;
};

constexpr int kConvertThreads = 256;
constexpr int kConvertedRows = 32;     // of a CTA
constexpr int kConvertedElements = 8;  // of a thread at a time: 16 bytes of the result
// Rows behind a sequence's used ones that kernels read with them, of a block of keys: they become zeros.
constexpr int kRowsBehind = 256;

/// K or V.
struct ConvertedTensor {
  Rows from;  // counts pairs of elements
  ScaleParams scales;
  unsigned short* to;                     // [batch, seqlen, heads, columns], packed [total, heads, columns]; null of V
                                          // where it is K's first columns
  int row_pieces;                         // of kConvertedElements, of all heads
  Divisor by_row_pieces, by_head_pieces;  // of all heads and of one
};

struct ConvertCacheParams {
  ConvertedTensor k, v;
  CacheParams cache;
  const int* cu_seqlens;  // [batch + 1], of packed rows; null: they are not
  const int* seqused;     // [batch]; null: all rows
  long long total;        // packed rows
  int seqlen, chunks;     // of a sequence: rows at most, and CTAs for each of K and V
  Divisor by_chunks;
  bool in_pages, has_entries;
};

}  // namespace strobe::auxiliary
