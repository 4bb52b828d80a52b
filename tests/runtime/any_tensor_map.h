// SPDX-License-Identifier: Apache-2.0
// A tensor map as a kernel of these tests takes it.
#pragma once

#include "runtime/tensor_map.h"

namespace strobe::runtime {

struct alignas(kTensorMapAlignment) AnyTensorMap {
  std::byte bytes[kTensorMapBytes];
};

}  // namespace strobe::runtime
