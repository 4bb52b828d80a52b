// SPDX-License-Identifier: Apache-2.0
// How lists are split among tasks where there are few queries.
#pragma once

#include <algorithm>
#include <cstdint>

#include "call/arithmetic.h"
#include "cpu/sparse/kernels.h"

namespace strobe::cpu {

// Tasks that keep the workers of a large machine busy, and keys that are worth a task.
inline constexpr std::int64_t kWantedTasks = 64;
inline constexpr std::int64_t kLeastPlaces = 256;

/// How the places of a list are split: by shapes, so that threads change no bit.
struct ListSplit {
  ListSplit(std::int64_t units, std::int64_t list_keys) {
    const std::int64_t most =
        std::min(ceil_div(kWantedTasks, std::max<std::int64_t>(units, 1)), ceil_div(list_keys, kLeastPlaces));
    places = round_up(ceil_div(list_keys, std::max<std::int64_t>(most, 1)), kSparseBlock);
    parts = std::max<std::int64_t>(1, ceil_div(list_keys, std::max<std::int64_t>(places, 1)));
  }
  std::int64_t places;  // of a part
  std::int64_t parts;
};

}  // namespace strobe::cpu
