// SPDX-License-Identifier: Apache-2.0
// Tensors of a GPU call as rows of heads, and what kernels need of their memory.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "call/problem.h"
#include "kernels/sequence/rows.h"
#include "strobe/attention.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe::gpu {

inline constexpr std::int64_t kAccessBytes = 16;  // of TMA's strides and of vector loads and stores

/// Elements in `bytes`, which is a multiple of their size: a power of two, so that no run of a plan divides.
inline std::int64_t elements_in(std::int64_t bytes, DType dtype) { return bytes >> std::countr_zero(size_of(dtype)); }

/// Elements in that unit.
inline std::int64_t access_elements(DType dtype) { return elements_in(kAccessBytes, dtype); }

/// A tensor [batch, rows, heads, columns] or packed [rows, heads, columns], which is a batch of 1.
struct RowsView {
  std::string_view name;
  ConstTensorView view;

  bool packed() const { return view.rank == 3; }
  std::int64_t extent(int from_last) const { return view.shape[static_cast<std::size_t>(view.rank - from_last)]; }
  std::int64_t stride(int from_last) const { return view.strides[static_cast<std::size_t>(view.rank - from_last)]; }
  std::int64_t batch() const { return packed() ? 1 : view.shape[0]; }
  std::int64_t batch_stride() const { return packed() ? 0 : view.strides[0]; }
  std::int64_t rows() const { return extent(3); }
  bool empty() const { return batch() * rows() * extent(2) == 0; }
};

/// 8-bit V lies transposed: as rows of keys, which its columns are. Other V as it is.
ConstTensorView rows_of_v(const AttentionProblem& problem, const ConstTensorView& v);

/// Whether addresses and strides are multiples of kAccessBytes; the Status names the first tensor that the kernels'
/// copies cannot take.
Status check_alignments(const AttentionProblem& problem, const ForwardArguments& arguments);
Status check_alignments(const BackwardArguments& arguments);

/// The rows of a tensor of 16-bit elements as kernels address them; of O in float32 of 8-bit calls, which counts as
/// they do.
Rows rows_of(const RowsView& tensor);

/// The rows of a tensor of a call whose q is of that dtype: of float32, halves are counted.
Rows rows_of(const RowsView& tensor, DType dtype);

/// The rows of a tensor of 8-bit elements, counted in pairs, as kernels address them.
Rows rows_of_pairs(const RowsView& tensor);

}  // namespace strobe::gpu
