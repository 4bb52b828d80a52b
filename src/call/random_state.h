// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "strobe/attention.h"

namespace strobe {

/// Seed and offset themselves, read from where they lie: of calls whose device is the host. Without dropout nothing is
/// read: what the pointer is then, nobody has checked.
inline RandomState numbers_of(const RandomState& random, float dropout) {
  if (random.on_device == nullptr || dropout == 0.0F) return {.seed = random.seed, .offset = random.offset};
  return {.seed = random.on_device[0], .offset = random.on_device[1]};
}

}  // namespace strobe
