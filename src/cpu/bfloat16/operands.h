// SPDX-License-Identifier: Apache-2.0
// What a unit multiplies: packed tiles into a block of float32 sums.
#pragma once

#include <cstdint>

#include "cpu/bfloat16/scratch.h"

namespace strobe::cpu {

/// Tiles of one operand along the sum: tile `step` of row group (or column group) `group` begins at
/// data + group * group_stride + step * kTileElements.
struct TileOperand {
  const bfloat16* data;
  std::int64_t group_stride;
};

/// A 2 x 2 block of float32 sums, kBlock rows of `stride` elements.
struct TileSums {
  float* data;
  std::int64_t stride;
};

}  // namespace strobe::cpu
