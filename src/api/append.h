// SPDX-License-Identifier: Apache-2.0
// What must hold of the numbers that an append reads from host memory.
#pragma once

#include "strobe/cache.h"
#include "strobe/status.h"

namespace strobe::api {

/// Lengths, pages, positions, and the places that are written: of an append on the CPU whose shapes are checked.
Status check_append_values(const AppendArguments& arguments);

}  // namespace strobe::api
