// SPDX-License-Identifier: Apache-2.0
// Where the scales of rows stored in 8 bits lie. Plain C++ without std headers, shared by host and device.
#pragma once

namespace strobe {

/// Scales of 8-bit elements: row r of a head has element r >> shift.
struct ScaleParams {
  const float* data;
  long long batch_stride, head_stride;
  int shift;  // 31: one for all rows

  constexpr const float* of(int batch, int head) const { return data + batch * batch_stride + head * head_stride; }
};

}  // namespace strobe
