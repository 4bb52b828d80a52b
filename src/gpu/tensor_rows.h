// SPDX-License-Identifier: Apache-2.0
// Tensors of a GPU call as rows of heads, and what kernels need of their memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/sequence/rows.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe::gpu {

inline constexpr std::int64_t kAccessBytes = 16;  // of TMA's strides and of vector loads and stores

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

/// Data and strides in multiples of kAccessBytes; the Status names what is not. `engine`: for the message.
Status check_alignment(const RowsView& tensor, std::string_view engine);

/// The rows of a tensor of 16-bit elements as kernels address them.
Rows rows_of(const RowsView& tensor);

/// The rows of a tensor of 8-bit elements, counted in pairs, as kernels address them.
Rows rows_of_pairs(const RowsView& tensor);

}  // namespace strobe::gpu
