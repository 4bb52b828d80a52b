// SPDX-License-Identifier: Apache-2.0
#include "gpu/family.h"
#include "sm80/family.h"
#include "sm90/family.h"

namespace strobe::gpu {

std::span<const Family* const> families() {
  static const Family* const all[] = {&sm90::family(), &sm80::family()};
  return all;
}

}  // namespace strobe::gpu
