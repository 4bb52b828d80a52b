// SPDX-License-Identifier: Apache-2.0
// Reading and writing where memory runs out: a Status as for everything else that goes wrong with a file.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <new>

#include "strobe/status.h"

namespace strobe::io {

/// The message names the file if there is memory for that; "out of memory" fits a std::string without any.
inline Status out_of_memory(const std::filesystem::path& path) {
  try {
    return {StatusCode::out_of_memory, fmt::format("'{}': out of memory", path.string())};
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "out of memory"};
  }
}

/// What `work` returns, or out_of_memory where it throws std::bad_alloc.
template <class Work>
auto or_out_of_memory(const std::filesystem::path& path, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return out_of_memory(path);
  }
}

}  // namespace strobe::io
