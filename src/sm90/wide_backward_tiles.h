// SPDX-License-Identifier: Apache-2.0
// The backward of heads of more than 256 columns: tiles and fields.
#pragma once

#include "kernels/sm90/backward/config.h"

namespace strobe::sm90 {

/// `call`, whose rule and columns are known, with its tiles and what registers and shared memory leave.
backward::Config with_wide_tiles(const backward::Config& call);

}  // namespace strobe::sm90
