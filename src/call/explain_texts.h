// SPDX-License-Identifier: Apache-2.0
// What becomes of the texts of a call, for people: the lines that Plan::explain() ends with, whatever the engine.
#pragma once

#include <string>

#include "call/problem.h"

namespace strobe {

/// Of a problem as engines are given it: the options that its texts say, the simplified texts with their derivatives,
/// and how many blocks a mask of positions hides. Empty where there are no texts.
std::string explain_texts(const AttentionProblem& problem);

}  // namespace strobe
