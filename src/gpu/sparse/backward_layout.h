// SPDX-License-Identifier: Apache-2.0
// What the gradients of a sparse call need of the workspace, and how many queries are computed at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "strobe/sparse.h"

namespace strobe::gpu {

/// One source; offsets are in the workspace.
struct SparseGradientRows {
  std::size_t index = 0;  // of the call's sources
  std::int64_t page_rows = 1;
  std::int64_t rows = 0;  // of all pages or batch entries
  std::int64_t lists = 1;
  std::int64_t width = 1;           // places of a list
  std::int64_t first_key = 0;       // among those of a unit
  std::int64_t first_v_column = 0;  // of rows of gradients
  std::int64_t columns = 0;
  std::size_t sums = 0, places = 0, counts = 0, shares = 0;
};

struct SparseGradientLayout {
  bool packed = false;
  std::int64_t entries = 0, seqlen_q = 0;  // packed: one entry has all
  std::int64_t heads_q = 0, heads_kv = 0, group = 0;
  std::int64_t head_dim = 0, head_dim_v = 0;
  std::int64_t unit_keys = 0;
  std::int64_t padded_rows = 0;  // queries, rounded up to what kernels read at once
  std::int64_t wave = 1;         // queries at once
  std::vector<SparseGradientRows> sources;
  std::size_t lse_log2 = 0, row_max = 0, d_sum = 0;
  std::size_t p = 0, ds = 0;
  std::size_t bytes = 0;

  std::int64_t queries() const { return entries * seqlen_q; }
};

SparseGradientLayout sparse_gradient_layout(const SparseForwardArguments& arguments);

}  // namespace strobe::gpu
