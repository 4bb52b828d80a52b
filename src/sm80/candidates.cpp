// SPDX-License-Identifier: Apache-2.0
#include "sm80/candidates.h"

#include "gpu/plan/backward_plan.h"
#include "sm80/forward_tiles.h"
#include "sm80/times.h"

namespace strobe::sm80 {
namespace {

/// Adds the plan that a choice makes.
void add_forward(const AttentionProblem& problem, const DeviceShape& shape, const gpu::Choice& choice,
                 gpu::Candidates& candidates) {
  const Result<forward::Config> config = forward_config(problem, shape, choice);
  if (!config.ok()) return;
  const ForwardPlan plan = forward_plan(problem, shape, *config, choice);
  candidates.add(choice, shape, forward_work(problem, shape, plan),
                 explain(problem, shape, plan) + std::to_string(plan.order.section_heads));
}

std::vector<gpu::Candidate> forward_candidates(const AttentionProblem& problem, const DeviceShape& shape,
                                               const forward::Config& config) {
  gpu::Candidates candidates;
  add_forward(problem, shape, {}, candidates);
  const ForwardPlan rule = forward_plan(problem, shape, config);
  if (rule.tiles == 0) return candidates.ranked();
  const int ctas = shape.multiprocessors * config.ctas_per_sm;
  for (const int split_ctas :
       gpu::other_splits(splits(config) ? rule.workers : 0, ctas, rule.tiles, config.rule.varlen)) {
    add_forward(problem, shape, {.split_ctas = split_ctas}, candidates);
  }
  for (const forward::Config& tiles : tile_choices(config, problem, shape)) {
    add_forward(problem, shape, {.block_m = block_m(tiles), .block_n = tiles.block_n, .ctas = tiles.ctas_per_sm},
                candidates);
  }
  if (rule.order.section_heads > 1) {
    const int heads = rule.tiles / rule.order.m_tiles;
    for (const int section_heads : gpu::numbers_near(rule.order.section_heads, heads)) {
      add_forward(problem, shape, {.section_heads = section_heads}, candidates);
    }
  }
  return candidates.ranked();
}

void add_backward(const AttentionProblem& problem, const DeviceShape& shape, const gpu::Choice& choice,
                  gpu::Candidates& candidates) {
  const Result<backward::Config> config = backward_config(problem, shape, choice);
  if (!config.ok()) return;
  const BackwardPlan plan = backward_plan(problem, shape, *config, choice);
  candidates.add(choice, shape, backward_work(problem, shape, plan), explain(problem, shape, plan));
}

std::vector<gpu::Candidate> backward_candidates(const AttentionProblem& problem, const DeviceShape& shape,
                                                const backward::Config& config) {
  gpu::Candidates candidates;
  add_backward(problem, shape, {}, candidates);
  const BackwardPlan rule = backward_plan(problem, shape, config);
  if (rule.items == 0) return candidates.ranked();
  for (const int section_heads : gpu::numbers_near(rule.params.section_heads, gpu::backward_key_heads(problem))) {
    add_backward(problem, shape, {.section_heads = section_heads}, candidates);
  }
  for (const backward::Config& tiles : tile_choices(config, shape)) {
    add_backward(problem, shape, {.block_m = tiles.block_m, .block_n = block_n(tiles), .ctas = tiles.ctas_per_sm},
                 candidates);
  }
  return candidates.ranked();
}

}  // namespace

Result<std::vector<gpu::Candidate>> candidates(const AttentionProblem& problem, const gpu::DeviceShape& shape) {
  if (problem.pass == Pass::forward) {
    const Result<forward::Config> config = forward_config(problem, shape);
    if (!config.ok()) return config.status();
    return forward_candidates(problem, shape, *config);
  }
  const Result<backward::Config> config = backward_config(problem, shape);
  if (!config.ok()) return config.status();
  return backward_candidates(problem, shape, *config);
}

}  // namespace strobe::sm80
