// SPDX-License-Identifier: Apache-2.0
// Texts that say what an option says, too.
#pragma once

#include "call/problem.h"
#include "call/score_terms.h"

namespace strobe {

/// The problem with a causal mask, a window, a softcap, a bias or ALiBi in the place of texts that say the same, such
/// as `k <= q + k_len - q_len && q - k < 512` and `30 * tanh(score / 30) + bias[head][q][k]`; others stay as they are.
/// Runs of such a plan have captures in the place of bias and slopes: engine::with_captured_options().
AttentionProblem with_built_in_options(AttentionProblem problem);

/// Of what that leaves: where a mask says more, as `k <= q && document[k] == document[q]` does, the causal mask or
/// window that a part of it says stands beside it, so that nobody looks at what that hides.
AttentionProblem with_implied_options(AttentionProblem problem);

/// Of a problem before that: the captures that it makes a bias and slopes, none where the score stays a text.
ScoreTerms captured_options(const AttentionProblem& problem);

}  // namespace strobe
