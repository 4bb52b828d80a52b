// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "strobe/attention.h"

namespace strobe {

/// Seed and offset themselves, read from where they lie: of calls whose device is the host.
inline RandomState numbers_of(const RandomState& random) {
  if (random.on_device == nullptr) return random;
  return {.seed = random.on_device[0], .offset = random.on_device[1]};
}

}  // namespace strobe
