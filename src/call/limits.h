// SPDX-License-Identifier: Apache-2.0
// What the API accepts at most.
#pragma once

#include <cstdint>

namespace strobe {

/// Columns of a head of q and k: Multi-head Latent Attention has 512 and 64 for the position.
inline constexpr std::int64_t kMaxHeadDim = 576;
/// Of v and o.
inline constexpr std::int64_t kMaxHeadDimV = 512;

/// Queries of a sequence with a tree mask: bits of its numbers.
inline constexpr std::int64_t kMaxTreeQueries = 64;

/// Tensors that the texts of a call may read.
inline constexpr int kMaxCaptures = 8;

}  // namespace strobe
