// SPDX-License-Identifier: Apache-2.0
// The kernels of sm90 that the build compiles ahead.
#pragma once

#include "gpu/variant/pack_list.h"

namespace strobe::sm90 {

/// Training and prefill as most models ask for them, options that models are known for, 8-bit operands, and what all
/// kernels of a GPU of compute capability 9.0 share.
std::vector<runtime::CommonVariant> pack();

}  // namespace strobe::sm90
