// SPDX-License-Identifier: Apache-2.0
// The kernels of sm80 that the build compiles ahead.
#pragma once

#include "gpu/variant/pack_list.h"

namespace strobe::sm80 {

/// Training and prefill as most models ask for them, and decoding.
std::vector<runtime::CommonVariant> pack();

}  // namespace strobe::sm80
