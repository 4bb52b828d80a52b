// SPDX-License-Identifier: Apache-2.0
// What this engine does not take, whatever its kernels.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "call/problem.h"
#include "strobe/status.h"

namespace strobe::hopper {

inline constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

template <class... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::unsupported, fmt::format(format, std::forward<Args>(args)...)};
}

/// dtypes, head_dims, options and lengths; the Status names the first that this engine lacks, and who has it.
Status check_supported(const AttentionProblem& problem);

}  // namespace strobe::hopper
