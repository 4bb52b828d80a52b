// SPDX-License-Identifier: Apache-2.0
// How the sm80 forward cuts its work: by head_dim, rows, options, and the device's shared memory and registers.
#pragma once

#include <cstdint>
#include <vector>

#include "call/problem.h"
#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "kernels/sm80/forward/config.h"

namespace strobe::sm80 {

using gpu::DeviceShape;

/// Of a sequence and head, packed heads counted in.
std::int64_t rows_of(const AttentionProblem& problem, const forward::Config& config);

/// The fastest tiles that fit the device, or those that are asked for.
void choose_tiles(forward::Config& config, const AttentionProblem& problem, const DeviceShape& shape,
                  const gpu::Choice& choice = {});

/// `config` with each of the tiles that may be asked for: those that fit the device, the fastest first.
std::vector<forward::Config> tile_choices(const forward::Config& config, const AttentionProblem& problem,
                                          const DeviceShape& shape);

}  // namespace strobe::sm80
