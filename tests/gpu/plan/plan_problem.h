// SPDX-License-Identifier: Apache-2.0
// What the tests of plans plan: a plain problem, on an H200.
#pragma once

#include "call/problem.h"
#include "gpu/plan/devices.h"
#include "sm90/forward_plan.h"

namespace strobe::test {

/// Self-attention of two sequences with eight heads, in bfloat16.
inline AttentionProblem problem_of(std::int64_t seqlen, std::int64_t head_dim, std::int64_t head_dim_v) {
  AttentionProblem problem;
  problem.dtype = DType::bfloat16;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 8;
  problem.head_dim = head_dim;
  problem.head_dim_v = head_dim_v;
  problem.seqlen_q = problem.seqlen_k = seqlen;
  problem.total_q = problem.total_k = problem.batch * seqlen;
  problem.scale = 0.125F;
  return problem;
}

inline AttentionProblem grouped_causal(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                                       std::int64_t seqlen, std::int64_t head_dim) {
  AttentionProblem problem = problem_of(seqlen, head_dim, head_dim);
  problem.causal = CausalMask::bottom_right;
  problem.batch = batch;
  problem.heads_q = heads_q;
  problem.heads_kv = heads_kv;
  return problem;
}

/// What sparse attention over rows of latent attention plans: 2,048 pages of one row for each query, of 128 heads.
inline AttentionProblem problem_of_rows(std::int64_t queries, std::int64_t head_dim) {
  AttentionProblem problem = problem_of(2048, head_dim, 512);
  problem.batch = problem.total_q = queries;
  problem.seqlen_q = 1;
  problem.total_k = queries * problem.seqlen_k;
  problem.heads_q = 64;
  problem.heads_kv = 1;
  problem.page_size = 1;
  problem.has_seqused_k = true;
  return problem;
}

inline sm90::forward::Config config_of(const AttentionProblem& problem) {
  return *sm90::forward_config(problem, kH200);
}

inline sm90::ForwardPlan plan_of(const AttentionProblem& problem) {
  return sm90::forward_plan(problem, kH200, config_of(problem));
}

}  // namespace strobe::test
