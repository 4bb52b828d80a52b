// SPDX-License-Identifier: Apache-2.0
// Which calls the AMX kernels serve, and in what tiles.
#pragma once

#include "call/problem.h"
#include "cpu/plan.h"

namespace strobe::cpu {

/// bfloat16, with every option.
bool amx_serves(const AttentionProblem& problem);

// Sizes are multiples of amx::kBlock.
Tiles amx_forward_tiles(const AttentionProblem& problem, const Machine& machine, int threads);
Tiles amx_backward_tiles(const AttentionProblem& problem);

}  // namespace strobe::cpu
