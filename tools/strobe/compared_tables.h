// SPDX-License-Identifier: Apache-2.0
// strobe tune --compare.
#pragma once

#include <string>

#include "exit_code.h"
#include "json_flag.h"

namespace strobe::program {

/// Says which of the calls that both tables have have the same choice in both. invalid_argument names a file that is no
/// table.
ExitCode compare_tables(const std::string& first, const std::string& second, const JsonFlag& json);

}  // namespace strobe::program
