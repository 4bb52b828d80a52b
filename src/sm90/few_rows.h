// SPDX-License-Identifier: Apache-2.0
// Calls of so few query rows that WGMMA's 64 would be mostly idle.
#pragma once

#include "call/problem.h"

namespace strobe::sm90 {

/// Whether kernels are faster for the call whose tiles are of 16 rows, and whose warps share out the keys.
// log: sm90-forward-few-rows-by-mmasync-table
bool is_decode(const AttentionProblem& problem);

}  // namespace strobe::sm90
