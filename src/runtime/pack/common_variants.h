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

/// Of each GPU engine, by its own choice of kernels: defined in src/sm90 and src/sm80.
std::vector<CommonVariant> hopper_variants();
std::vector<CommonVariant> ampere_variants();

}  // namespace strobe::runtime
