// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "strobe/attention.h"

namespace strobe {

/// Seed and offset themselves, read from where they lie: of calls whose device is the host. Without dropout nothing is
/// read: what the pointer is then, nobody has checked.
inline RandomState numbers_of(const RandomState& random, float dropout) {
  RandomState numbers = random;
  numbers.on_device = nullptr;
  if (random.on_device == nullptr || dropout == 0.0F) return numbers;
  numbers.seed = random.on_device[0];
  numbers.offset = random.on_device[1];
  return numbers;
}

/// Query heads of the call that one of `heads_q` is a part of.
inline std::int64_t heads_in_all(const RandomState& random, std::int64_t heads_q) {
  return random.heads == 0 ? heads_q : random.heads;
}

/// The number that dropout has for a head of the call.
inline unsigned dropout_head(const RandomState& random, std::int64_t heads_q, std::int64_t batch, std::int64_t head) {
  return static_cast<unsigned>((random.first_batch + batch) * heads_in_all(random, heads_q) + random.first_head + head);
}

}  // namespace strobe
