// SPDX-License-Identifier: Apache-2.0
// The kernels that the build compiles ahead. Who has kernels defines these functions: the runtime knows none.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/variant.h"

namespace strobe::runtime {

struct CommonVariant {
  Variant variant;
  unsigned dynamic_shared_bytes = 0;  // what a launch asks for; for the report
};

std::vector<CommonVariant> common_variants();

/// What all headers of kernels can be compiled for.
std::string_view newest_architecture();

}  // namespace strobe::runtime
