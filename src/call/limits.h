// SPDX-License-Identifier: Apache-2.0
// What the API accepts at most.
#pragma once

#include <cstdint>

namespace strobe {

inline constexpr std::int64_t kMaxHeadDim = 512;

}  // namespace strobe
