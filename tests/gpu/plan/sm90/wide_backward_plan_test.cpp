// SPDX-License-Identifier: Apache-2.0
// Backwards of heads of more than 256 columns: what the plan decides, and what it lacks.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "gpu/plan/plan_problem.h"
#include "kernels/sm90/backward/wide/smem.h"
#include "sm90/backward_plan.h"

namespace strobe::sm90 {
namespace {

using test::kH100;

using WideBackwardChange = void (*)(AttentionProblem& problem);

constexpr WideBackwardChange kWideBackwardOptions[] = {
    [](AttentionProblem&) {},
    [](AttentionProblem& p) { p.causal = CausalMask::bottom_right; },
    [](AttentionProblem& p) { p.window.left = 1023; },
    [](AttentionProblem& p) { p.softcap = 30.0F; },
    [](AttentionProblem& p) { p.modifiers.has_alibi = true; },
    [](AttentionProblem& p) { p.modifiers.has_sink = p.wants_d_sink = true; },
    [](AttentionProblem& p) { p.dropout = 0.1F; },
    [](AttentionProblem& p) { p.packed_q = p.packed_k = true; },
    [](AttentionProblem& p) { p.deterministic = true; },
    [](AttentionProblem& p) { p.heads_kv = 2; },
};

AttentionProblem wide_problem(std::int64_t head_dim = 512, std::int64_t head_dim_v = 512) {
  AttentionProblem problem = test::problem_of(4096, head_dim, head_dim_v);
  problem.pass = Pass::backward;
  return problem;
}

BackwardPlan wide_plan(const AttentionProblem& problem) {
  const Result<backward::Config> config = backward_config(problem, kH100);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return backward_plan(problem, kH100, *config);
}

TEST(Sm90WideBackwardPlan, FitsRegistersAndSharedMemory) {
  using Widths = std::pair<std::int64_t, std::int64_t>;
  for (const auto& [head_dim, head_dim_v] : {Widths{264, 264}, Widths{320, 256}, Widths{288, 288}, Widths{512, 512},
                                             Widths{64, 512}, Widths{512, 8}, Widths{384, 448}}) {
    for (const WideBackwardChange option : kWideBackwardOptions) {
      AttentionProblem problem = wide_problem(head_dim, head_dim_v);
      option(problem);
      const BackwardPlan plan = wide_plan(problem);
      const backward::Config& config = plan.config;
      SCOPED_TRACE(explain(problem, plan));
      EXPECT_TRUE(config.wide && config.by_roles);
      EXPECT_FALSE(config.shares_keys);
      EXPECT_LE(main_smem_bytes(config), kMaxSmemBytes);
      EXPECT_LE(smem_plan(plan.query).total_bytes, kMaxSmemBytes);
      EXPECT_GE(config.q_stages, 2);
      const backward::WideRegisterBudget registers = backward::wide_register_budget(config.rule);
      EXPECT_LE((registers.producer + registers.scores + 2 * registers.sums) * kWarpgroupSize, 65536);
      EXPECT_GE(config.head_dim, head_dim);
      EXPECT_GE(config.head_dim_v, head_dim_v);
      EXPECT_EQ(plan.query.head_dim * plan.query.column_parts, config.head_dim);
      EXPECT_LE(plan.query.head_dim, 256);
      const int chunks = plan.prepare.threads_per_row * (plan.prepare.two_chunks ? 2 : 1);
      EXPECT_GE(chunks * 8, head_dim_v);
    }
  }
  AttentionProblem narrow = test::problem_of(4096, 256, 256);
  narrow.pass = Pass::backward;
  EXPECT_FALSE(wide_plan(narrow).config.wide);
}

TEST(Sm90WideBackwardPlan, IsExplained) {
  const AttentionProblem problem = wide_problem();
  const std::string text = explain(problem, wide_plan(problem));
  for (const char* const line : {"tiles         64 keys x 64 query rows, head_dim 512 as 512, head_dim_v 512 as 512\n",
                                 "warpgroups    in each of two CTAs 1 producer, 1 for scores, 2 for dV or dK\n",
                                 "dQ            by a kernel of its own from dS: the same bits every time\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
}

TEST(Sm90WideBackwardPlan, NamesWhatItLacks) {
  const auto rejection = [](WideBackwardChange change) {
    AttentionProblem problem = wide_problem();
    change(problem);
    return std::string(backward_config(problem, kH100).status().message());
  };
  const std::string end =
      " given, head_dim is 512 and head_dim_v 512: the sm90 kernels take up to 256; the sm80 kernels more";
  EXPECT_EQ(rejection([](AttentionProblem& p) { p.modifiers.has_bias = p.wants_d_bias = true; }), "d_bias is" + end);
  EXPECT_EQ(rejection([](AttentionProblem& p) { p.expression.gradients = 1; }), "d_captures are" + end);
  EXPECT_EQ(rejection([](AttentionProblem& p) { p.modifiers.has_bias = true; }), "");
  EXPECT_EQ(rejection([](AttentionProblem& p) { p.modifiers.block_size = 64; }), "");
  EXPECT_EQ(rejection([](AttentionProblem& p) { p.head_dim = 520; }),
            "head_dim is 520: the gpu engine takes multiples of 8 up to 512, the cpu engine all up to 576");
}

TEST(Sm90WideBackwardPlan, SharesOutDSAmongLaunches) {
  AttentionProblem problem = wide_problem();
  problem.seqlen_q = problem.seqlen_k = 65536;
  problem.total_q = problem.total_k = 2 * problem.seqlen_q;
  const BackwardPlan plan = wide_plan(problem);
  EXPECT_GT(plan.launches.size(), 1U);
  EXPECT_LE(plan.workspace.total_bytes, std::size_t{5} << 30U);
}

}  // namespace
}  // namespace strobe::sm90
