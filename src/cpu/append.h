// SPDX-License-Identifier: Apache-2.0
// The append of the CPU engine.
#pragma once

#include "strobe/cache.h"

namespace strobe::cpu {

/// A checked append. Allocates nothing.
void append(const AppendArguments& arguments, const Execution& execution);

}  // namespace strobe::cpu
