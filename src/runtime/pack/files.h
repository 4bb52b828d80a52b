// SPDX-License-Identifier: Apache-2.0
// Whole files in and out.
#pragma once

#include <filesystem>
#include <string>

#include "strobe/status.h"

namespace strobe::runtime {

Result<std::string> read_file(const std::filesystem::path& path);

/// Leaves a file that already holds these bytes as it is, so that nothing is rebuilt for it.
Status write_file(const std::filesystem::path& path, const std::string& bytes);

}  // namespace strobe::runtime
