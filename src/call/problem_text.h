// SPDX-License-Identifier: Apache-2.0
// A call as text: what is recorded, and what names it in a table of tuned choices.
#pragma once

#include <string>

#include "call/problem.h"

namespace strobe {

/// JSON of the fields whose values are not the standard ones, on one line. Without the device.
std::string call_text(const AttentionProblem& problem);

}  // namespace strobe
