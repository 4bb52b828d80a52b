// SPDX-License-Identifier: Apache-2.0
// A forward after the kernel that converts its cache.
#pragma once

#include "engine/engine.h"
#include "gpu/call/request.h"
#include "gpu/plan/converted_cache.h"
#include "runtime/device.h"

namespace strobe::gpu {

/// `call`, planned for with_converted_cache(problem), after the conversion.
engine::PlannedCallResult after_cache_conversion(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                                 const engine::PlannedCallResult& call);

/// A request for with_converted_cache(request.problem), as `plan` plans it, after the conversion.
template <class Plan>
engine::PlannedCallResult plan_after_conversion(const Request& request, const Plan& plan) {
  const AttentionProblem converted = with_converted_cache(request.problem);
  return after_cache_conversion(request.problem, request.device, plan(request.of(converted)));
}

}  // namespace strobe::gpu
