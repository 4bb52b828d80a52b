// SPDX-License-Identifier: Apache-2.0
// What a plan must know of the device.
#pragma once

#include <cstddef>

namespace strobe::sm90 {

struct DeviceShape {
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
};

}  // namespace strobe::sm90
