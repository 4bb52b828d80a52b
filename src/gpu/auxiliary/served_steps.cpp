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

AttentionProblem layer_of(const ServedHeads& heads) {
  constexpr std::int64_t kHeadsKv = 8;
  AttentionProblem layer;
  layer.dtype = DType::bfloat16;
  layer.heads_q = kHeadsKv * heads.group;
  layer.heads_kv = kHeadsKv;
  layer.head_dim = layer.head_dim_v = heads.head_dim;
  layer.scale = 1.0F;
  layer.causal = CausalMask::bottom_right;
  layer.window.left = heads.window;
  layer.modifiers.has_sink = heads.sink;
  return layer;
}

}  // namespace

std::vector<AttentionProblem> served_steps() {
  std::vector<AttentionProblem> steps;
  for (const ServedHeads& heads : kServed) {
    for (const ServedStep& step : kServedSteps) {
      if (heads.sink && heads.window >= 0 && step.sequences == 1) continue;  // whose kernel spills
      AttentionProblem& problem = steps.emplace_back(served_step(layer_of(heads), step));
      if (heads.window >= 0 || heads.sink) continue;
      AttentionProblem stored = problem;
      stored.stored = {DType::float8_e4m3, stored.seqlen_k, stored.seqlen_k};
      steps.push_back(stored);
    }
  }
  return steps;
}

}  // namespace strobe::gpu
