// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernel that finds the rows which lists name. Plain C++ without std headers, shared by host
// and device.
#pragma once

#include "kernels/math/divisor.h"

namespace strobe::auxiliary {

struct ListedPlacesConfig {
  bool pages = false;  // rows of a sequence lie in pages that a table names

  bool operator==(const ListedPlacesConfig&) const = default;
};

inline constexpr int kListedPlacesThreads = 256;

/// Elements from a sequence's or a query's entry of a tensor to the next. Of packed queries all are one sequence's.
struct QueryStrides {
  long long sequence, query;
};

/// A source of a sparse call.
///
/// A place is a row of K and V of one list's heads as a forward reads it, a page of one row:
/// page * page_step + row * row_step + list * list_step. What `page` is depends on how the keys lie: a page, a sequence
/// of a batch, or 0.
struct ListedPlacesParams {
  const int* indices;
  QueryStrides index_strides;
  long long index_list_stride;
  const int* topk_length;  // null: all of a list counts
  QueryStrides length_strides;
  const int* cu_seqlens_q;  // null: queries are batched, or packed and of one sequence
  const int* cu_seqlens_k;  // null: keys are not packed, or all are of one sequence
  const int* seqused_k;     // null: sequences have all keys that they may have
  const int* page_table;
  long long table_sequence_stride, table_page_stride;
  Divisor by_page_size;  // of pages and pools
  int pages;             // that exist, of pages
  int sequences;
  int seqlen_q;     // queries of a sequence; packed: of all
  int seqlen_k;     // keys that a sequence may have; packed: of all
  int first_query;  // of this launch, counted through all sequences
  int lists;        // of a query
  int topk, block_size;
  bool packed_q, batched_k, in_pool, causal;
  long long page_step, row_step;
  int list_step;

  int* places;  // [queries of this launch, lists, width]
  int* counts;  // [queries of this launch, lists]
  int width;
};

}  // namespace strobe::auxiliary
