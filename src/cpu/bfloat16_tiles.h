// SPDX-License-Identifier: Apache-2.0
// Which calls the bfloat16 kernels serve, and in what tiles.
#pragma once

#include "call/problem.h"
#include "cpu/plan.h"

namespace strobe::cpu {

/// bfloat16, with every option but normalize none and gradients of qv.
bool takes_bfloat16(const AttentionProblem& problem);

// Sizes are multiples of bf16::kBlock.
Tiles bfloat16_forward_tiles(const AttentionProblem& problem, const Machine& machine, int threads);
Tiles bfloat16_backward_tiles(const AttentionProblem& problem, const Machine& machine);

}  // namespace strobe::cpu
