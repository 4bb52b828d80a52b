// SPDX-License-Identifier: Apache-2.0
// What the API accepts at most.
#pragma once

#include <cstdint>

namespace strobe {

inline constexpr std::int64_t kMaxHeadDim = 512;

/// Queries of a sequence with a tree mask: bits of its numbers.
inline constexpr std::int64_t kMaxTreeQueries = 64;

/// Tensors that the texts of a call may read.
inline constexpr int kMaxCaptures = 8;

}  // namespace strobe
