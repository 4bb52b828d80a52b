// SPDX-License-Identifier: Apache-2.0
// Which caches in 8 bits are converted to 16 bits before the forward.
#pragma once

#include "call/problem.h"

namespace strobe::sm80 {

/// Those of wide heads, and of row-invariant calls: elsewhere few query rows are multiplied by stored elements, and
/// blocks have other sizes than on 16 bits.
bool converts_cache(const AttentionProblem& problem);

/// What the kernels of a forward are planned for.
AttentionProblem kernels_problem(const AttentionProblem& problem);

}  // namespace strobe::sm80
