// SPDX-License-Identifier: Apache-2.0
// Masks that are texts and say what an option says, too.
#pragma once

#include "call/problem.h"

namespace strobe::gpu {

/// The problem with a causal mask or a window in the place of a text that says the same, such as
/// `k <= q + k_len - q_len && q - k < 512`; others stay as they are.
AttentionProblem with_built_in_masks(AttentionProblem problem);

}  // namespace strobe::gpu
