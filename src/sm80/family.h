// SPDX-License-Identifier: Apache-2.0
// The kernels of mma.sync as the engine sees them.
#pragma once

#include "gpu/family.h"

namespace strobe::sm80 {

/// For GPUs of compute capability 8.0 and later.
const gpu::Family& family();

}  // namespace strobe::sm80
