// SPDX-License-Identifier: Apache-2.0
// Which design takes which options, and that their kernels fit.
#include <gtest/gtest.h>

#include <initializer_list>

#include "gpu/plan/plan_problem.h"
#include "kernels/sm90/backward/bias_gradient/config.h"
#include "kernels/sm90/backward/smem.h"
#include "sm90/backward_plan.h"

namespace strobe::sm90 {
namespace {

using test::kH200;
using test::problem_of;

BackwardPlan planned(const AttentionProblem& problem) {
  const auto config = backward_config(problem, kH200);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return backward_plan(problem, kH200, *config, gpu::Choice{});
}

TEST(Sm90BackwardOptions, OptionsChooseTheDesign) {
  const auto plan_with = [](auto change) {
    AttentionProblem problem = problem_of(1000, 128, 128);
    change(problem);
    return planned(problem);
  };
  const BackwardPlan dropped = plan_with([](AttentionProblem& p) { p.dropout = 0.25F; });
  EXPECT_TRUE(dropped.config.by_roles);
  EXPECT_EQ(dropped.params.scale, problem_of(1000, 128, 128).scale / 0.75F);
  EXPECT_TRUE(plan_with([](AttentionProblem& p) { p.modifiers.has_bias = true; }).config.by_roles);
  for (const int size : {64, 128}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      AttentionProblem problem = problem_of(1000, head_dim, head_dim);
      problem.modifiers.block_size = size;
      const BackwardPlan plan = planned(problem);
      EXPECT_EQ(plan.config.by_roles, size < 128 || head_dim > 128);
      EXPECT_EQ(size % plan.config.block_m, 0);  // a step lies in one block
      EXPECT_EQ(size % (plan.query.consumer_warpgroups * backward::kScoreTile), 0);
    }
  }
}

TEST(Sm90BackwardOptions, BlockMasksBesideOthersOrForTheSameBitsAreByRoles) {
  for (const auto& change : std::initializer_list<void (*)(AttentionProblem&)>{
           [](AttentionProblem& p) { p.deterministic = true; }, [](AttentionProblem& p) { p.softcap = 30.0F; },
           [](AttentionProblem& p) { p.modifiers.has_bias = true; }, [](AttentionProblem& p) { p.dropout = 0.25F; }}) {
    for (const std::int64_t head_dim : {64, 128}) {
      AttentionProblem problem = problem_of(1000, head_dim, head_dim);
      problem.modifiers.block_size = 128;
      change(problem);
      EXPECT_TRUE(planned(problem).config.by_roles);
    }
  }
}

TEST(Sm90BackwardOptions, NarrowHeadsTakeOptionsInStepsOf64Queries) {
  for (const bool deterministic : {false, true}) {
    for (const auto& change : std::initializer_list<void (*)(AttentionProblem&)>{
             [](AttentionProblem& p) { p.softcap = 30.0F; }, [](AttentionProblem& p) { p.dropout = 0.25F; },
             [](AttentionProblem& p) { p.modifiers.has_bias = p.wants_d_bias = true; }}) {
      AttentionProblem problem = problem_of(1000, 64, 64);
      problem.deterministic = deterministic;
      change(problem);
      const BackwardPlan plan = planned(problem);
      EXPECT_EQ(plan.config.by_roles, deterministic);  // sums in order take steps of two parts of dQ
      EXPECT_EQ(plan.config.block_m, deterministic ? 128 : 64);
      EXPECT_EQ(plan.config.staged_dq, problem.softcap == 0.0F && !deterministic);
      const backward::Config gradient = bias_gradient_config(plan.config);
      EXPECT_TRUE(gradient.by_roles);  // whatever computes dQ, dK and dV
      EXPECT_EQ(block_n(gradient), 64);
    }
  }
}

TEST(Sm90BackwardOptions, TheBiasGradientFitsForEveryHeadDim) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (const std::int64_t head_dim_v : {std::int64_t{8}, head_dim, std::int64_t{256}}) {
      AttentionProblem problem = problem_of(1000, head_dim, head_dim_v);
      problem.modifiers.has_bias = true;
      problem.wants_d_bias = true;
      const backward::Config config = bias_gradient_config(planned(problem).config);
      EXPECT_LE(bias_gradient_smem_plan(config).total_bytes, kMaxSmemBytes) << head_dim;
    }
  }
}

}  // namespace
}  // namespace strobe::sm90
