// SPDX-License-Identifier: Apache-2.0
// Sparse attention in float64: the listed rows of a query, gathered one after another, are the keys of an ordinary
// attention, whose values and bounds these are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference/bound/reference.h"
#include "strobe/row_format.h"
#include "strobe/sparse.h"

namespace strobe::reference {

/// The columns of a row whose bytes are given in order, the tail last: each the product of its element and its group's
/// scale, rounded to float32, which is what the format says it holds.
std::vector<float> decode_row(const RowFormat& format, const std::vector<std::byte>& row);

/// A row that a query reads.
struct ListedRow {
  std::size_t source;
  std::int64_t page;  // or batch entry, or 0 of a packed k
  std::int64_t row;
};

/// The rows that query `row` (counted through the whole of q) reads for a key head, in the order of its lists.
std::vector<ListedRow> listed_rows(const SparseForwardArguments& arguments, std::int64_t row, std::int64_t head_kv);

struct SparseForwardResult {
  BoundedTensor o;    // in o's shape
  BoundedTensor lse;  // in lse's shape, whether or not the call asks for it
};

/// O and LSE of a call that strobe::sparse_forward accepts with host tensors.
SparseForwardResult sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options = {},
                                   const ArithmeticModel& model = {}, int threads = 0);

struct SparseBackwardResult {
  BoundedTensor dq;
  std::array<BoundedTensor, kMaxSparseSources> dk, dv;  // of sources that are not given, or have no v: empty
  BoundedTensor d_sink;                                 // empty where the call does not ask for it
};

/// The gradients of a call that strobe::sparse_backward accepts with host tensors, from float64 O and LSE of its own:
/// those of the gathered rows, each added to the row that it came from.
SparseBackwardResult sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options = {},
                                     const ArithmeticModel& model = {});

}  // namespace strobe::reference
