// SPDX-License-Identifier: Apache-2.0
// K and V as a cache: what a call of a forward knows of it.
#pragma once

#include "call/problem.h"
#include "kernels/sequence/cache.h"
#include "strobe/attention.h"

namespace strobe::gpu {

/// `box_rows`: of what the kernel reads of a page at a time, where it does.
CacheParams cache_params(const AttentionProblem& problem, const ForwardArguments& arguments, int box_rows);

}  // namespace strobe::gpu
