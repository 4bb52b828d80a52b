// SPDX-License-Identifier: Apache-2.0
// Writes files that are either whole or not there.
#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <span>

#include "strobe/status.h"

namespace strobe::io {

/// Writes `parts` one after another to a temporary file beside `path` and renames it to `path`: a reader sees the old
/// file or the new one, never half of it. invalid_argument, with the system's words, when the file cannot be written.
Status write_file(const std::filesystem::path& path, std::initializer_list<std::span<const std::byte>> parts);

}  // namespace strobe::io
