// SPDX-License-Identifier: Apache-2.0
// The forward whose producers read K's rows in a format, and convert them.
#pragma once

#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "kernels/sm90/forward/config.h"
#include "strobe/row_format.h"
#include "strobe/status.h"

namespace strobe {
struct AttentionProblem;
}

namespace strobe::sm90 {

/// The variant for a problem whose pages are rows, and whose V is K's first columns; or unsupported, saying why there
/// is none or why it does not pay.
Result<forward::Config> rows_config(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                                    const RowFormat& format, const gpu::Choice& choice = {});

}  // namespace strobe::sm90
