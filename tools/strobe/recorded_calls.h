// SPDX-License-Identifier: Apache-2.0
// The calls that a run has recorded, as STROBE_RECORD writes them.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "call/problem.h"
#include "strobe/status.h"

namespace strobe::program {

/// The call of one line. invalid_argument says what is wrong with it.
Result<AttentionProblem> call_of(std::string_view line);

/// The calls of a file, one a line, each once. invalid_argument names the line that is none.
Result<std::vector<AttentionProblem>> recorded_calls(const std::filesystem::path& path);

}  // namespace strobe::program
