// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/served_steps.h"

#include <cstdint>

namespace strobe::gpu {
namespace {

/// What kernels depend on of a model's layers: sizes of heads, how many of the queries' read one of the keys', windows
/// and sinks.
struct ServedHeads {
  std::int64_t head_dim = 128;
  std::int64_t group = 1;
  std::int64_t window = -1;
  bool sink = false;
};

constexpr ServedHeads kServed[] = {{64, 4},              // Llama 3.2 1B
                                   {64, 8},              //
                                   {128, 1},             // Llama 2
                                   {128, 2},             // Qwen 3 0.6B
                                   {128, 4},             // Llama 3.1 8B
                                   {128, 5},             // Qwen 2.5 14B
                                   {128, 7},             // Qwen 2.5 7B
                                   {128, 8},             // Llama 3.1 70B, Qwen 3 30B
                                   {256, 2},             // Gemma 3
                                   {128, 4, 4095},       // Mistral 7B
                                   {256, 2, 1023},       // Gemma 3's windows
                                   {64, 8, -1, true},    // gpt-oss
                                   {64, 8, 127, true}};  // gpt-oss' windows

struct Step {
  std::int64_t sequences, longest, queries;
};

constexpr Step kSteps[] = {{8, 1, 8}, {256, 1, 256}, {64, 2048, 2111}, {1, 8192, 8192}};

AttentionProblem step_of(const ServedHeads& heads, const Step& step) {
  constexpr std::int64_t kHeadsKv = 8;
  AttentionProblem problem;
  problem.dtype = DType::bfloat16;
  problem.batch = step.sequences;
  problem.heads_q = kHeadsKv * heads.group;
  problem.heads_kv = kHeadsKv;
  problem.head_dim = problem.head_dim_v = heads.head_dim;
  problem.seqlen_q = step.longest;
  problem.total_q = step.queries;
  problem.seqlen_k = 16384;
  problem.total_k = step.sequences * problem.seqlen_k;
  problem.packed_q = true;
  problem.has_seqused_k = true;
  problem.page_size = 16;
  problem.scale = 1.0F;
  problem.causal = CausalMask::bottom_right;
  problem.window.left = heads.window;
  problem.modifiers.has_sink = heads.sink;
  return problem;
}

}  // namespace

std::vector<AttentionProblem> served_steps() {
  std::vector<AttentionProblem> steps;
  for (const ServedHeads& heads : kServed) {
    for (const Step& step : kSteps) {
      if (heads.sink && heads.window >= 0 && step.sequences == 1) continue;  // whose kernel spills
      AttentionProblem& problem = steps.emplace_back(step_of(heads, step));
      if (heads.window >= 0 || heads.sink) continue;
      AttentionProblem stored = problem;
      stored.stored = {DType::float8_e4m3, stored.seqlen_k, stored.seqlen_k};
      steps.push_back(stored);
    }
  }
  return steps;
}

}  // namespace strobe::gpu
