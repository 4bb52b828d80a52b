// SPDX-License-Identifier: Apache-2.0
// What servers ask of attention, step by step, for models that are served much: the build compiles their kernels ahead.
#pragma once

#include <vector>

#include "call/problem.h"

namespace strobe::gpu {

/// Forwards in bfloat16 over a cache in pages of 16 rows, packed as vLLM packs them: a query of each of few and of many
/// sequences, prompts, and chunks of prompts beside single queries; over a cache in e4m3, too.
std::vector<AttentionProblem> served_steps();

}  // namespace strobe::gpu
