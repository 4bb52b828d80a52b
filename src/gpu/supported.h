// SPDX-License-Identifier: Apache-2.0
// What no GPU engine takes, whatever its kernels.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "call/problem.h"
#include "strobe/status.h"

namespace strobe::gpu {

inline constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

template <class... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::unsupported, fmt::format(format, std::forward<Args>(args)...)};
}

/// Checks that the inputs have 16 bits. `engine`: for the message.
Status check_dtype(const AttentionProblem& problem, std::string_view engine);

/// head_dims and lengths.
Status check_sizes(const AttentionProblem& problem, std::string_view engine);

}  // namespace strobe::gpu
