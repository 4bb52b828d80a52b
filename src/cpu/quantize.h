// SPDX-License-Identifier: Apache-2.0
// The quantiser of the CPU engine.
#pragma once

#include "strobe/quantize.h"

namespace strobe::cpu {

/// A checked quantisation. Throws std::bad_alloc.
void quantize(const QuantizeArguments& arguments, const QuantizeOptions& options, const Execution& execution);

}  // namespace strobe::cpu
