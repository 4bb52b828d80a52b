// SPDX-License-Identifier: Apache-2.0
// The code of texts: a rule names it, and variants of the rule are compiled with it.
#pragma once

#include <string>
#include <vector>

#include "call/problem.h"
#include "kernels/score/rule.h"

namespace strobe::gpu {

/// Whether a call's mask is a text that no option says.
bool has_text_mask(const AttentionProblem& problem);

/// The rule of those of a call's texts that its kernels look at. Of all texts whose code is the same it is the same, in
/// every process.
TextRule text_rule(const AttentionProblem& problem);

/// That of its mask alone, of the kernel that looks at it first.
TextRule mask_rule(const AttentionProblem& problem);

/// The code that a rule of text_rule() names; none of rules without texts.
std::string code_of(const TextRule& rule);

/// What a forward of the rule is compiled with beside the standard options. Where a row's bits must not depend on its
/// call, all kernels, and all loops of one, round each operation of a text by itself.
std::vector<std::string> forward_options(const ScoreRule& rule);

}  // namespace strobe::gpu
