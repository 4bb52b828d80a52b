// Which calls the AMX kernels serve, and in what tiles.
#pragma once

#include "plan/cpu_plan.h"
#include "plan/problem.h"

namespace strobe::plan {

/// bfloat16, with every option.
bool amx_serves(const AttentionProblem& problem);

// Sizes are multiples of amx::kBlock.
cpu::Tiles amx_forward_tiles(const AttentionProblem& problem, const CpuShape& shape, int threads);
cpu::Tiles amx_backward_tiles(const AttentionProblem& problem);

}  // namespace strobe::plan
