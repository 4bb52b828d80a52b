// SPDX-License-Identifier: Apache-2.0
// The forward by sm90 kernels: a plan made into launches.
#pragma once

#include "engine/engine.h"
#include "gpu/call/request.h"

namespace strobe::sm90 {

/// Chooses the kernel and loads it, compiling it first where neither the pack nor the cache has it.
engine::PlannedCallResult plan_forward(const gpu::Request& request);

/// The same of the variant that rows_config() has.
engine::PlannedCallResult plan_rows(const gpu::Request& request, const RowFormat& format);

/// The variant that cache_rows_config() has where the call's V is K's first columns, else `converted`, of a cache that
/// was converted to 16 bits.
engine::PlannedCallResult plan_cache_rows(const gpu::Request& request, const engine::PlannedCallResult& converted);

}  // namespace strobe::sm90
