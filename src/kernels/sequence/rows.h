// SPDX-License-Identifier: Apache-2.0
// Rows of a tensor in global memory. Plain C++ without std headers, shared by host and device.
#pragma once

namespace strobe {

/// Rows that count 16 bits: elements of 16, halves of float32 or pairs of 8-bit elements. So do strides. Packed
/// tensors: one batch.
struct Rows {
  unsigned short* data;
  long long batch_stride, row_stride, head_stride;

  constexpr long long offset(long long batch, long long row, long long head) const {
    return batch * batch_stride + row * row_stride + head * head_stride;
  }
  constexpr unsigned short* row(long long batch, long long row, long long head) const {
    return data + offset(batch, row, head);
  }
};

}  // namespace strobe
