// SPDX-License-Identifier: Apache-2.0
// How the sm80 forward cuts its work: by head_dim, rows, options, and the device's shared memory and registers.
#pragma once

#include <cstdint>

#include "call/problem.h"
#include "gpu/plan/device.h"
#include "kernels/sm80/forward/config.h"

namespace strobe::sm80 {

using gpu::DeviceShape;

/// Of a sequence and head, packed heads counted in.
std::int64_t rows_of(const AttentionProblem& problem, const forward::Config& config);

/// The fastest tiles that fit the device.
void choose_tiles(forward::Config& config, const AttentionProblem& problem, const DeviceShape& shape);

}  // namespace strobe::sm80
