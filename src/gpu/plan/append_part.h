// SPDX-License-Identifier: Apache-2.0
// Workspaces are parts one behind another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "call/checked.h"

namespace strobe::gpu {

/// Appends a part to a workspace of `total` bytes, which it counts, and returns where the part begins.
inline std::size_t append_part(std::size_t& total, Checked bytes, std::int64_t alignment = 256) {
  const std::size_t at = total;
  total = (Checked(at) + round_up(bytes, alignment)).value<std::size_t>();
  return at;
}

}  // namespace strobe::gpu
