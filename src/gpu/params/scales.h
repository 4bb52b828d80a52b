// SPDX-License-Identifier: Apache-2.0
// Scales of 8-bit elements as kernels take them.
#pragma once

#include <cstdint>

#include "kernels/sequence/scales.h"
#include "strobe/tensor.h"

namespace strobe::gpu {

/// Scales [batch or 1, heads or 1, scales] of `rows` rows each, a power of two; extents of 1 are every entry's.
ScaleParams scale_params(const ConstTensorView& scales, std::int64_t rows);

}  // namespace strobe::gpu
