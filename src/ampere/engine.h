// SPDX-License-Identifier: Apache-2.0
// The Ampere engine as the registry sees it.
#pragma once

#include "engine/engine.h"

namespace strobe::ampere {

/// Serves tensors on GPUs of compute capability 8.0 and later.
const engine::Implementation& engine();

}  // namespace strobe::ampere
