// SPDX-License-Identifier: Apache-2.0
// The backward by sm80 kernels: a plan made into launches.
#pragma once

#include "engine/engine.h"
#include "gpu/call/request.h"

namespace strobe::sm80 {

/// Chooses the kernels and loads them, compiling them first where neither the pack nor the cache has them.
engine::PlannedCallResult plan_backward(const gpu::Request& request);

}  // namespace strobe::sm80
