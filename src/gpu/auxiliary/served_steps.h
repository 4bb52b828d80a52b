// SPDX-License-Identifier: Apache-2.0
// What servers ask of attention, step by step: the build compiles the kernels of models that are served much ahead, and
// the program `strobe` those of one model.
#pragma once

#include <cstdint>
#include <vector>

#include "call/problem.h"

namespace strobe::gpu {

/// How many sequences have queries in a step, how many queries the longest has, and all of them together.
struct ServedStep {
  std::int64_t sequences, longest, queries;
};

/// A query of each of few and of many sequences, chunks of prompts beside single queries, and a prompt.
inline constexpr ServedStep kServedSteps[] = {{8, 1, 8}, {256, 1, 256}, {64, 2048, 2111}, {1, 8192, 8192}};

/// The call of a layer in such a step over a cache in pages of 16 rows, packed as vLLM packs it. `layer` has dtype,
/// heads, mask and modifiers.
inline AttentionProblem served_step(AttentionProblem layer, const ServedStep& step) {
  layer.batch = step.sequences;
  layer.seqlen_q = step.longest;
  layer.total_q = step.queries;
  layer.seqlen_k = 16384;
  layer.total_k = step.sequences * layer.seqlen_k;
  layer.packed_q = true;
  layer.has_seqused_k = true;
  layer.page_size = 16;
  return layer;
}

/// Such steps of models that are served much, in bfloat16; over a cache in e4m3, too.
std::vector<AttentionProblem> served_steps();

}  // namespace strobe::gpu
