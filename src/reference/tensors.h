// SPDX-License-Identifier: Apache-2.0
// Where each sequence's rows lie, and reading one head of them as float64.
#pragma once

#include <cstdint>
#include <vector>

#include "strobe/attention.h"

namespace strobe::reference {

/// One sequence. Rows are counted through the whole tensor: batch * seqlen + position, or the packed row.
struct SequenceRows {
  std::int64_t sequence = 0;  // of the batch
  std::int64_t first_q = 0;
  std::int64_t first_k = 0;
  std::int64_t seqlen_q = 0;  // used lengths
  std::int64_t seqlen_k = 0;
  bool is_part = false;         // of a longer sequence, as offsets say
  std::int64_t position_q = 0;  // of the first query, in that sequence
  std::int64_t position_k = 0;  // of the first key
};

std::vector<SequenceRows> sequence_rows(const ConstTensorView& q, const ConstTensorView& k, const Sequences& sequences);

inline std::int64_t heads_of(const ConstTensorView& view) { return view.shape[view.rank - 2]; }
inline std::int64_t head_dim_of(const ConstTensorView& view) { return view.shape[view.rank - 1]; }

/// Rows of q, k, v or o that share one leading index: seqlen when batched, the total when packed.
inline std::int64_t rows_per_entry(const ConstTensorView& view) { return view.shape[view.rank - 3]; }

/// Row-major index of (row, head) in lse [batch, heads, seqlen] or [heads, total].
inline std::int64_t lse_index(std::int64_t row, std::int64_t head, std::int64_t heads, std::int64_t rows_per_entry) {
  return (row / rows_per_entry * heads + head) * rows_per_entry + row % rows_per_entry;
}

/// One element, widened exactly; `offset` in elements.
double load(const ConstTensorView& view, std::int64_t offset);

/// count elements of view.shape multiplied together.
std::int64_t element_count(const ConstTensorView& view);

/// The elements of a host tensor in row-major order, widened exactly.
std::vector<double> elements(const ConstTensorView& view);

/// The element of d_lse, laid out as lse, that belongs to (row, head) of q; 0 where it is not given.
double d_lse_at(const ConstTensorView& d_lse, std::int64_t row, std::int64_t head, std::int64_t rows_per_entry);

/// `rows` rows of one head of q, k, v or dO, from row `first` on: [rows, head_dim], row-major.
std::vector<double> read_head(const ConstTensorView& view, std::int64_t first, std::int64_t rows, std::int64_t head);

/// The rows of `left`, each with that of `right` behind it.
std::vector<double> join_columns(const std::vector<double>& left, const std::vector<double>& right, std::int64_t rows);

/// [rows, columns] to [columns, rows].
std::vector<double> transpose(const std::vector<double>& matrix, std::int64_t rows, std::int64_t columns);

}  // namespace strobe::reference
