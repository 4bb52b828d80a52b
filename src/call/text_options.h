// SPDX-License-Identifier: Apache-2.0
// Texts that say what an option says, too.
#pragma once

#include "call/problem.h"

namespace strobe {

/// The problem with a causal mask, a window or a softcap in the place of texts that say the same, such as
/// `k <= q + k_len - q_len && q - k < 512` and `30 * tanh(score / 30)`; others stay as they are.
AttentionProblem with_built_in_options(AttentionProblem problem);

}  // namespace strobe
