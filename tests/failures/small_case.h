// SPDX-License-Identifier: Apache-2.0
// A call with every kind of memory: several heads, packed sequences with unused rows, optional inputs and outputs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <type_traits>
#include <vector>

#include "attention/case_tensors.h"

namespace strobe::test {

/// What is said where there is no memory to say more.
inline constexpr const char* kRanOut = "out of memory";

inline AttentionCase small_case() {
  AttentionCase attention{.batch = 2, .heads_q = 4, .heads_kv = 2, .head_dim = 16, .head_dim_v = 16};
  attention.q = {.rows = 70, .cu_seqlens = {0, 40, 65}};
  attention.k = {.rows = 80, .cu_seqlens = {0, 30, 80}, .seqused = {30, 45}};
  attention.options = {.causal = CausalMask::bottom_right, .dropout = 0.25F};
  attention.alibi = Alibi::per_head;
  attention.has_sink = true;
  attention.wants_max_logits = true;
  attention.seed = 1;
  return attention;
}

struct NamedExecution {
  const char* name;
  Execution execution;
};

/// Pools that allocate nothing themselves.
inline std::vector<NamedExecution> executions() {
  static const ParallelFor in_turn = [](int count, const std::function<void(int)>& body) {
    for (int index = 0; index < count; ++index) body(index);
  };
  return {{"one thread", {.threads = 1}},
          {"the caller's pool", {.threads = 3, .parallel_for = &in_turn}},
          {"oneTBB", {.threads = 2}}};
}

/// What a call with these arguments writes.
template <class Arguments>
std::vector<GuardedTensor*> outputs_of(CaseTensors& tensors) {
  return std::is_same_v<Arguments, ForwardArguments> ? tensors.forward_outputs() : tensors.backward_outputs();
}

template <class Arguments>
bool outputs_untouched(CaseTensors& tensors) {
  return std::ranges::all_of(outputs_of<Arguments>(tensors), [](const auto* output) { return output->untouched(); });
}

template <class Arguments>
void poison_outputs(CaseTensors& tensors) {
  for (GuardedTensor* output : outputs_of<Arguments>(tensors)) output->poison();
}

template <class Arguments>
void expect_same_results(CaseTensors& tensors, CaseTensors& expected) {
  const auto actual = outputs_of<Arguments>(tensors);
  const auto wanted = outputs_of<Arguments>(expected);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(actual[i]->element_bytes() == wanted[i]->element_bytes());
  }
}

}  // namespace strobe::test
