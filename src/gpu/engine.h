// SPDX-License-Identifier: Apache-2.0
// The engine of NVIDIA GPUs as the registry sees it.
#pragma once

#include "engine/engine.h"

namespace strobe::gpu {

/// Serves tensors on the GPUs of all families of kernels.
const engine::Implementation& engine();

}  // namespace strobe::gpu
