// SPDX-License-Identifier: Apache-2.0
// The kernels that the build compiles ahead.
#pragma once

#include <vector>

#include "runtime/variant.h"

namespace strobe::runtime {

struct CommonVariant {
  Variant variant;
  unsigned dynamic_shared_bytes = 0;  // what a launch asks for; for the report
};

/// Defined in src/plan, from the engines' own choice of kernels.
std::vector<CommonVariant> common_variants();

}  // namespace strobe::runtime
