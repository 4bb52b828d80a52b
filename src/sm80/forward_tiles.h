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

/// How a CTA's work is cut.
struct Tiles {
  int warps = 0, rows_per_warp = 0, block_n = 0, stages = 0, ctas_per_sm = 0;
  bool q_in_registers = false;
  int key_groups = 1;
  int column_warps = 1;
  int slice_columns = 0;
};

/// Of a sequence and head, packed heads counted in.
std::int64_t rows_of(const AttentionProblem& problem, const forward::Config& config);

/// The columns that a forward is compiled for.
void choose_columns(forward::Config& config, const AttentionProblem& problem);

/// The fastest tiles that fit the device, or those that are asked for.
void choose_tiles(forward::Config& config, const AttentionProblem& problem, const DeviceShape& shape,
                  const gpu::Choice& choice = {});

/// `config` with each of the tiles that may be asked for: those that fit the device, the fastest first.
std::vector<forward::Config> tile_choices(const forward::Config& config, const AttentionProblem& problem,
                                          const DeviceShape& shape);

}  // namespace strobe::sm80
