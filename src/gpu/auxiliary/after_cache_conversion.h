// SPDX-License-Identifier: Apache-2.0
// A forward after the kernel that converts its cache.
#pragma once

#include "engine/engine.h"
#include "runtime/device.h"

namespace strobe::gpu {

/// `call`, planned for with_converted_cache(problem), after the conversion.
engine::PlannedCallResult after_cache_conversion(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                                 const engine::PlannedCallResult& call);

}  // namespace strobe::gpu
