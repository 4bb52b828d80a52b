// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernel of strobe::append, its variants and its sizes. Plain C++ without std headers,
// shared by host and device.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/math/element.h"

namespace strobe::auxiliary {

/// Which columns are a pair: i and i + rotary_dim / 2, or 2 i and 2 i + 1.
enum class Rotation : unsigned char { none, halves, interleaved };

struct AppendConfig {
  Element source = Element::bf16;  // of k_new, v_new, q and q_out
  Element cache = Element::bf16;
  Rotation rotation = Rotation::none;
  // 16 bytes of new rows are one access, and so are the elements in the cache and the angles that belong to them.
  bool aligned = true;
  bool row_scales = false;  // of a cache of 8 bits: computed and written, one a row, instead of read

  bool operator==(const AppendConfig&) const = default;
};

constexpr int kAppendThreads = 256;
constexpr int kMostItems = 4;   // of a thread, whose loads are on their way at once
constexpr int kMostRows = 256;  // of a block
constexpr int kMostBlockItems = kAppendThreads * kMostItems;

/// Elements of an access.
constexpr int append_vector(const AppendConfig& c) { return c.aligned ? 16 / bytes_of(c.source) : 1; }

/// Rows of heads, cut into items: a vector of columns each, or the two vectors of columns that are rotated together.
struct AppendedRows {
  const void* from;
  long long from_batch, from_row, from_head;  // strides in elements; packed: one batch
  void* to;
  long long to_batch, to_row, to_head;  // of an entry or page of the cache; of q_out
  // Of a cache of 8 bits: scales of heads, which are read, or of the cache's rows, which are written.
  const float* scales;
  float* row_scales;
  long long scale_batch, scale_head, scale_row;  // batch: of a sequence; of rows: of an entry or page
  const int* cu_seqlens;                         // null: batched
  const int* positions;                          // null: from the lengths
  long long positions_batch;
  Divisor seqlen;  // of batched rows
  Divisor items_per_head;
  Divisor items_of_chunk;  // of a row, that one block takes
  int rows_apart;          // those of a thread's items, which have the same columns; 0: they have not
  int rotated_items;       // the first of a head's
  int items;               // of a row
  int chunks;              // of a row
  int rows;                // in all
  int rows_per_block;      // 1 where a row has several chunks
  int blocks;
};

struct AppendParams {
  AppendedRows k, v, q;  // their blocks in this order
  const int* cache_seqlens;
  const int* leftpad;
  const int* cache_batch_idx;
  const int* page_table;
  const void* cos;
  const void* sin;
  long long page_table_batch, cos_row, sin_row;
  Divisor page_size;  // rows of a page
  int max_pages;      // of a sequence
  int entries;        // pages, or entries of a contiguous cache
  int seqlen;         // rows of an entry of a contiguous cache
  int batch;
  int pairs;      // of columns that are rotated; 0: none
  int positions;  // that have angles
  Element cos_holds, sin_holds;
  bool q_in_order;  // else all queries are at the position of the first
};

}  // namespace strobe::auxiliary
