// SPDX-License-Identifier: Apache-2.0
// The forward by sm80 kernels: a plan made into launches.
#pragma once

#include "engine/engine.h"
#include "gpu/call/request.h"

namespace strobe::sm80 {

/// Chooses the kernel and loads it, compiling it first where neither the pack nor the cache has it.
engine::PlannedCallResult plan_forward(const gpu::Request& request);

}  // namespace strobe::sm80
