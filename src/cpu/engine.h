// SPDX-License-Identifier: Apache-2.0
// The CPU engine as the registry sees it.
#pragma once

#include "engine/engine.h"

namespace strobe::cpu {

/// Serves tensors in host memory, on every machine.
const engine::Implementation& engine();

}  // namespace strobe::cpu
