// SPDX-License-Identifier: Apache-2.0
// Which caches in 8 bits are converted to 16 bits before the forward.
#pragma once

#include "call/problem.h"

namespace strobe::sm90 {

/// Where that takes less time, and where no kernel here converts them: those of wide heads, and in row-invariant calls,
/// which have no other kernel, rows of pages that TMA does not bring.
bool converts_cache(const AttentionProblem& problem);

/// What the kernels of a forward are planned for.
AttentionProblem kernels_problem(const AttentionProblem& problem);

}  // namespace strobe::sm90
