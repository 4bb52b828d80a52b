// SPDX-License-Identifier: Apache-2.0
// The texts of calls, parsed once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strobe/expression.h"
#include "strobe/status.h"

namespace strobe::python {

using SharedFunction = std::shared_ptr<const ScoreFunction>;

/// What ScoreFunction::parse() makes of the texts, and an error for a capture that neither of them reads. The functions
/// of the last 256 different texts and captures are kept. Any thread may call it, with or without the interpreter.
Result<SharedFunction> parsed_once(const std::string& score, const std::string& mask,
                                   std::vector<CaptureType> captures);

}  // namespace strobe::python
