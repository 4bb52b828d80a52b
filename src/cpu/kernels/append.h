// SPDX-License-Identifier: Apache-2.0
// Rows on their way into a cache: rotated and converted, by the instruction set that this machine runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "call/limits.h"
#include "strobe/tensor.h"

namespace strobe::cpu {

// A vector's length beyond the largest row, so that whole vectors are computed with.
inline constexpr std::size_t kPaddedColumns = kMaxHeadDim + 64;
using PaddedRow = std::array<float, kPaddedColumns>;

/// Cosines and sines of one position; pairs 0: nothing is rotated.
struct Angles {
  std::int64_t pairs = 0;
  bool interleaved = false;
  PaddedRow cos;
  PaddedRow sin;
};

/// The heads of one row. Strides are in elements.
struct HeadRows {
  DType from_dtype;
  DType to_dtype;
  const void* from;
  void* to;
  std::int64_t from_stride;
  std::int64_t to_stride;
  std::int64_t heads;
  std::int64_t columns;
  // Of an 8-bit `to`, one scale a head: those that the row is divided by, or where those that it has are written.
  const float* scales;
  float* row_scales;  // or null
  std::int64_t scale_stride;
};

/// `count` elements, at most kMaxHeadDim, as float32.
void widen_row(DType dtype, const void* from, std::int64_t count, float* to);

void convert_heads(const HeadRows& rows, const Angles& angles);

}  // namespace strobe::cpu
