// SPDX-License-Identifier: Apache-2.0
// The Hopper engine as the registry sees it.
#pragma once

#include "engine/engine.h"

namespace strobe::hopper {

/// Serves tensors on GPUs of compute capability 9.0.
const engine::Implementation& engine();

}  // namespace strobe::hopper
