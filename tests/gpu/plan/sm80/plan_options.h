// SPDX-License-Identifier: Apache-2.0
// Problems for the planning tests of the sm80 kernels: each option alone, and some together.
#pragma once

#include <vector>

#include "call/problem.h"

namespace strobe::test {

inline std::vector<AttentionProblem> problems_with_options(const AttentionProblem& plain) {
  std::vector<AttentionProblem> problems = {plain};
  const auto add = [&](auto change) { change(problems.emplace_back(plain)); };
  add([](AttentionProblem& p) { p.causal = CausalMask::bottom_right; });
  add([](AttentionProblem& p) { p.window = {100, 50}; });
  add([](AttentionProblem& p) { p.packed_q = p.packed_k = true; });
  add([](AttentionProblem& p) { p.dropout = 0.1F; });
  add([](AttentionProblem& p) { p.modifiers.has_bias = true; });
  add([](AttentionProblem& p) {
    p.modifiers.has_bias = p.modifiers.has_alibi = p.modifiers.has_sink = p.wants_max_logits = true;
    p.modifiers.block_size = 64;
    p.chunk = 200;
    p.softcap = 30.0F;
    p.dropout = 0.1F;
  });
  add([](AttentionProblem& p) { p.modifiers.block_size = 64; });
  add([](AttentionProblem& p) { p.modifiers.block_size = 128; });
  return problems;
}

}  // namespace strobe::test
