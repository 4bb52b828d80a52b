// SPDX-License-Identifier: Apache-2.0
// What the engine takes and says of itself, whatever the pass.
#pragma once

#include <cstdint>
#include <string>

#include "call/problem.h"
#include "runtime/device.h"
#include "sm80/device_shape.h"
#include "strobe/status.h"

namespace strobe::sm80 {

DeviceShape shape_of(const runtime::CudaDevice& device);

Status check_supported(const AttentionProblem& problem);

/// The smallest compiled size that holds `head_dim`, which is at most 256.
int compiled_head_dim(std::int64_t head_dim);

/// The line of a plan's explanation that says why this engine has the call.
std::string explain(const DeviceShape& shape);

}  // namespace strobe::sm80
