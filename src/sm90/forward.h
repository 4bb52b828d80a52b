// SPDX-License-Identifier: Apache-2.0
// The forward by sm90 kernels: a plan made into launches.
#pragma once

#include "engine/engine.h"
#include "gpu/call/request.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// Chooses the kernel and loads it, compiling it first where neither the pack nor the cache has it.
engine::PlannedCallResult plan_forward(const gpu::Request& request);

/// The same of the variant that rows_config() has.
engine::PlannedCallResult plan_rows(const gpu::Request& request, const RowFormat& format);

/// The variant that cache_rows_config() has, for calls whose V is K's first columns.
engine::PlannedCallResult plan_cache_rows(const gpu::Request& request, const forward::Config& config);

}  // namespace strobe::sm90
