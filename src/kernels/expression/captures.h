// SPDX-License-Identifier: Apache-2.0
// The tensors that a call's texts read, as kernels take them. Plain C++ without std headers, shared by host and device.
#pragma once

namespace strobe::expression {

/// What a capture holds. Printed into the code of a text, so that a kernel is compiled for it.
enum class Stored : unsigned char { float32, float16, bfloat16, int32, int64, boolean };

inline constexpr int kMostCaptures = 8;
inline constexpr int kMostIndices = 4;

/// The first `rank` extents and strides count; strides are in elements.
struct CaptureView {
  const void* data;
  int shape[kMostIndices];
  long long strides[kMostIndices];
};

struct Captures {
  CaptureView of[kMostCaptures];
};

}  // namespace strobe::expression
