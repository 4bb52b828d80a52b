// SPDX-License-Identifier: Apache-2.0
// The kernels of TMA and WGMMA as the engine sees them.
#pragma once

#include "gpu/family.h"

namespace strobe::sm90 {

/// For GPUs of compute capability 9.0.
const gpu::Family& family();

}  // namespace strobe::sm90
