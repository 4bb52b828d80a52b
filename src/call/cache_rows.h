// SPDX-License-Identifier: Apache-2.0
// Which rows of tensors in host memory belong to a sequence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "call/sequences.h"
#include "strobe/cache.h"
#include "strobe/row_format.h"
#include "strobe/tensor.h"

namespace strobe {

/// Rows of the sequences of a batched tensor, rank 4, or of a packed one, rank 3.
struct SequenceRows {
  const ConstTensorView& tensor;
  const ConstTensorView& cu_seqlens;

  bool packed() const { return cu_seqlens.given(); }
  std::int64_t first(std::int64_t b) const { return packed() ? int32_at(cu_seqlens, b) : b * tensor.shape[1]; }
  std::int64_t count(std::int64_t b) const {
    return packed() ? int32_at(cu_seqlens, b + 1) - int32_at(cu_seqlens, b) : tensor.shape[1];
  }
  std::int64_t total(std::int64_t batch) const { return first(batch); }

  /// The sequence that row `row` of all belongs to.
  std::int64_t sequence_of(std::int64_t row, std::int64_t batch) const {
    if (!packed()) return row / tensor.shape[1];
    std::int64_t low = 0;
    std::int64_t high = batch;  // first(low) <= row < first(high)
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (first(middle) <= row ? low : high) = middle;
    }
    return low;
  }

  /// Where the row lies, in elements from the first, and how far apart its heads are.
  std::int64_t offset(std::int64_t row) const {
    if (packed()) return row * tensor.strides[0];
    return row / tensor.shape[1] * tensor.strides[0] + row % tensor.shape[1] * tensor.strides[1];
  }
  std::int64_t head_stride() const { return tensor.strides[static_cast<std::size_t>(tensor.rank - 2)]; }
};

/// Row `row` of page or batch entry `entry` of a cache.
struct CachePlace {
  std::int64_t entry;
  std::int64_t row;
};

/// Where the rows of an append's cache lie.
struct CachePlaces {
  const AppendArguments& a;

  bool paged() const { return a.page_table.given(); }
  std::int64_t rows_per_entry() const { return a.k_cache.shape[1]; }
  std::int64_t page(std::int64_t b, std::int64_t index) const {
    return static_cast<const std::int32_t*>(
        a.page_table.data)[b * a.page_table.strides[0] + index * a.page_table.strides[1]];
  }
  std::int64_t entry(std::int64_t b) const { return a.cache_batch_idx.given() ? int32_at(a.cache_batch_idx, b) : b; }
  CachePlace at(std::int64_t b, std::int64_t row) const {
    if (!paged()) return {entry(b), row};
    return {page(b, row / rows_per_entry()), row % rows_per_entry()};
  }
  /// The position of a sequence's first new key.
  std::int64_t first_position(std::int64_t b) const {
    return int32_at(a.cache_seqlens, b) - (a.leftpad_k.given() ? int32_at(a.leftpad_k, b) : 0);
  }
};

/// The append of floats whose rows go where those of an append in a format do: its cache is K's, its rows are k_new.
inline AppendArguments to_append(const AppendRowsArguments& rows) {
  AppendArguments a;
  a.k_cache = rows.cache;
  a.k_new = rows.rows;
  a.cu_seqlens_new = rows.cu_seqlens_new;
  a.cache_seqlens = rows.cache_seqlens;
  a.page_table = rows.page_table;
  a.cache_batch_idx = rows.cache_batch_idx;
  return a;
}

/// Positions of the rows of k_new or q.
struct RowPositions {
  const ConstTensorView& given;  // or not
  const SequenceRows& rows;
  const CachePlaces& cache;
  bool in_order = true;

  std::int64_t at(std::int64_t b, std::int64_t row) const {
    if (!given.given()) return cache.first_position(b) + (in_order ? row - rows.first(b) : 0);
    if (rows.packed()) return int32_at(given, row);
    const std::int64_t i = row - rows.first(b);
    return static_cast<const std::int32_t*>(given.data)[b * given.strides[0] + i * given.strides[1]];
  }
};

}  // namespace strobe
