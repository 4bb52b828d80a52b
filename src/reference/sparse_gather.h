// SPDX-License-Identifier: Apache-2.0
// The rows that a query of a sparse call reads, gathered into the tensors of an ordinary attention.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/sparse.h"

namespace strobe::reference {

/// The query heads that share a key head, of one query, and the rows that they read; float32, exact.
struct GatheredQuery {
  GatheredQuery(const SparseForwardArguments& arguments, std::int64_t row, std::int64_t head_kv);

  std::int64_t keys() const { return static_cast<std::int64_t>(rows.size()); }

  std::vector<ListedRow> rows;
  std::int64_t group, head_dim, head_dim_v;
  std::vector<float> q;  // [group, head_dim]
  std::vector<float> k;  // [keys, head_dim]
  std::vector<float> v;  // [keys, head_dim_v]
  std::vector<float> sink;
};

/// heads_q, heads_kv and queries of a call.
struct SparseExtents {
  explicit SparseExtents(const SparseForwardArguments& arguments);
  std::int64_t queries, heads_q, heads_kv, rows_per_entry;
};

}  // namespace strobe::reference
