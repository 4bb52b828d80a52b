// SPDX-License-Identifier: Apache-2.0
#include "sm90/idle_calls.h"

#include <string_view>
#include <utility>

#include "gpu/plan/known_devices.h"
#include "sm90/backward_plan.h"
#include "sm90/backward_tiles.h"
#include "sm90/forward_plan.h"
#include "sm90/list_kernels.h"

namespace strobe::sm90 {
namespace {

void add_idle_calls_of(const gpu::DeviceShape& shape, gpu::PackList& list) {
  AttentionProblem problem;
  problem.batch = 1;
  problem.scale = 1.0F;
  const auto add_planned = [&](Pass pass) {
    problem.pass = pass;
    if (rule_left(problem, shape).has_value()) static_cast<void>(list_kernels(problem, shape, {}, list));
  };
  gpu::for_common_shapes([&](DType dtype, std::int64_t head_dim, CausalMask causal) {
    problem.dtype = dtype;
    problem.head_dim = problem.head_dim_v = head_dim;
    problem.causal = causal;
    for (const auto& [heads_q, heads_kv] : {std::pair{16, 16}, {32, 8}}) {
      problem.heads_q = heads_q;
      problem.heads_kv = heads_kv;
      for (const std::int64_t seqlen : {256, 512, 1024, 2048}) {
        problem.seqlen_q = problem.total_q = problem.seqlen_k = problem.total_k = seqlen;
        add_planned(Pass::forward);
        for (const bool deterministic : {false, true}) {
          problem.deterministic = deterministic;
          add_planned(Pass::backward);
        }
        problem.deterministic = false;
      }
    }
  });
}

}  // namespace

std::optional<gpu::Choice> rule_left(const AttentionProblem& problem, const gpu::DeviceShape& shape) {
  if (problem.pass != Pass::forward) {
    const Result<backward::Config> planned = backward_config(problem, shape);
    const backward::Config rule = with_tiles(problem);
    if (!planned.ok() || *planned == rule) return std::nullopt;
    return gpu::Choice{.block_m = rule.block_m, .block_n = block_n(rule), .ctas = 1};
  }
  const Result<forward::Config> planned = forward_config(problem, shape);
  if (!planned.ok()) return std::nullopt;
  const forward::Config rule = tile_choices_of(problem, *planned).front();
  const gpu::Choice choice{.block_m = block_m(rule), .block_n = rule.block_n, .ctas = rule.ctas_per_sm};
  if (*planned == *forward_config(problem, shape, choice)) return std::nullopt;
  return choice;
}

void add_idle_calls(gpu::PackList& list) {
  for (const std::string_view device : {"H200", "H100 PCIe", "H20"}) {
    add_idle_calls_of(gpu::device_named(device), list);
  }
}

}  // namespace strobe::sm90
