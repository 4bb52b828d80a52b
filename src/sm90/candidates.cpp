// SPDX-License-Identifier: Apache-2.0
#include "sm90/candidates.h"

#include "call/heads.h"
#include "gpu/plan/backward_plan.h"
#include "sm90/backward_tiles.h"
#include "sm90/idle_calls.h"
#include "sm90/times.h"

namespace strobe::sm90 {
namespace {

/// Adds the plan that a choice makes.
void add_forward(const AttentionProblem& problem, const DeviceShape& shape, const gpu::Choice& choice,
                 gpu::Candidates& candidates) {
  const Result<forward::Config> config = forward_config(problem, shape, choice);
  if (!config.ok()) return;
  const ForwardPlan plan = forward_plan(problem, shape, *config, choice);
  candidates.add(choice, shape, forward_work(problem, shape, plan), explain(problem, plan));
}

std::vector<gpu::Candidate> forward_candidates(const AttentionProblem& problem, const DeviceShape& shape,
                                               const forward::Config& config) {
  gpu::Candidates candidates;
  add_forward(problem, shape, {}, candidates);
  if (const auto left = rule_left(problem, shape)) {
    add_forward(problem, shape, *left, candidates);
    candidates.measure_last();
  }
  const ForwardPlan rule = forward_plan(problem, shape, config);
  const int split = config.schedule == Schedule::split ? rule.workers : 0;
  for (const int split_ctas : gpu::other_splits(split, shape.multiprocessors, rule.tiles.tiles, config.rule.varlen)) {
    add_forward(problem, shape, {.split_ctas = split_ctas}, candidates);
  }
  for (const forward::Config& tiles : tile_choices_of(problem, config)) {
    add_forward(problem, shape, {.block_m = block_m(tiles), .block_n = tiles.block_n, .ctas = tiles.ctas_per_sm},
                candidates);
  }
  return candidates.ranked();
}

void add_backward(const AttentionProblem& problem, const DeviceShape& shape, const gpu::Choice& choice,
                  gpu::Candidates& candidates) {
  const Result<backward::Config> config = backward_config(problem, shape, choice);
  if (!config.ok()) return;
  const BackwardPlan plan = backward_plan(problem, shape, *config, choice);
  candidates.add(choice, shape, backward_work(problem, shape, plan), explain(problem, plan));
}

/// The same tiles with other parts of the query heads, and with other sections.
void add_orders(const AttentionProblem& problem, const DeviceShape& shape, const gpu::Choice& tiles,
                gpu::Candidates& candidates) {
  const Result<backward::Config> config = backward_config(problem, shape, tiles);
  if (!config.ok()) return;
  const BackwardPlan own = backward_plan(problem, shape, *config, tiles);
  std::vector<int> parts = {own.params.part_heads};
  if (takes_parts(problem, *config)) {
    for (const int part : gpu::numbers_near(own.params.part_heads, heads_per_key_head(problem))) parts.push_back(part);
  }
  for (const int part_heads : parts) {
    gpu::Choice choice = tiles;
    if (part_heads != own.params.part_heads) choice.part_heads = part_heads;
    add_backward(problem, shape, choice, candidates);
    const BackwardPlan plan = backward_plan(problem, shape, *config, choice);
    const std::int64_t heads = gpu::backward_key_heads(problem) * plan.params.key_parts;
    for (const int section_heads : gpu::numbers_near(plan.params.section_heads, heads)) {
      choice.section_heads = section_heads;
      add_backward(problem, shape, choice, candidates);
    }
  }
}

std::vector<gpu::Candidate> backward_candidates(const AttentionProblem& problem, const DeviceShape& shape) {
  gpu::Candidates candidates;
  add_backward(problem, shape, {}, candidates);
  if (problem.total_q == 0 || problem.total_k == 0 || problem.heads_q == 0) return candidates.ranked();
  if (const auto left = rule_left(problem, shape)) {
    add_backward(problem, shape, *left, candidates);
    candidates.measure_last();
  }
  add_orders(problem, shape, {}, candidates);
  for (const backward::Config& tiles : tile_choices(problem)) {
    add_orders(problem, shape, {.block_m = tiles.block_m, .block_n = block_n(tiles), .ctas = 1}, candidates);
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
  return backward_candidates(problem, shape);
}

}  // namespace strobe::sm90
