// SPDX-License-Identifier: Apache-2.0
// Calls with the options that models use, in combinations: what the pack `strobe-kernels` answers without a compiler.
#pragma once

#include <vector>

#include "call/problem.h"

namespace strobe::program {

/// Training and prefill in both 16-bit dtypes at head_dim 64, 96, 128, 192 and 256: masks, what is added to scores, two
/// at a time, dropout, batched, packed or with used lengths, short and long; both passes, the backward in any order and
/// in a fixed one. Decode: used lengths and pages, one and several queries, 1, 4 and 8 query heads a key head, K and V
/// in q's dtype and in 8 bits. Not every family has kernels for each of them.
std::vector<AttentionProblem> option_calls();

}  // namespace strobe::program
