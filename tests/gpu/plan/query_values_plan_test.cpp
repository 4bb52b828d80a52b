// SPDX-License-Identifier: Apache-2.0
// Calls with qv: which kernels serve them, and what is lacking.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "gpu/choose_family.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm90/forward/smem.h"
#include "sm80/forward_plan.h"
#include "sm90/forward_plan.h"

namespace strobe {
namespace {

using test::kH200;

AttentionProblem query_values_problem(std::int64_t head_dim, std::int64_t head_dim_v) {
  AttentionProblem problem = test::problem_of(4096, head_dim, head_dim_v);
  problem.has_qv = true;
  return problem;
}

TEST(QueryValuesPlan, WideKernelsServeAnyWidth) {
  using Widths = std::pair<std::int64_t, std::int64_t>;
  for (const auto& [head_dim, head_dim_v] : {Widths{64, 512}, {40, 512}, {192, 320}, {128, 128}, {8, 64}}) {
    const AttentionProblem problem = gpu::planned_problem(query_values_problem(head_dim, head_dim_v));
    const sm90::forward::Config hopper = test::config_of(problem);
    EXPECT_TRUE(is_wide(hopper));
    EXPECT_TRUE(hopper.rule.query_values);
    EXPECT_LE(smem_plan(hopper).total_bytes, sm90::kMaxSmemBytes);
    const Result<sm80::forward::Config> ampere = sm80::forward_config(problem, kH200);
    ASSERT_TRUE(ampere.ok()) << ampere.status().message();
    EXPECT_TRUE(fields_agree(*ampere)) << head_dim << ' ' << head_dim_v;
  }
}

TEST(QueryValuesPlan, ColumnsOfVAreLoadedOnceForOneKeyHead) {
  AttentionProblem problem = query_values_problem(64, 512);
  const auto shared = [](const AttentionProblem& own) {
    const AttentionProblem planned = gpu::planned_problem(own);
    return sm90::shared_values_config(planned, test::config_of(planned)).has_value();
  };
  EXPECT_FALSE(shared(problem));
  problem.heads_kv = 1;
  EXPECT_TRUE(shared(problem));
  problem.row_invariant = true;
  EXPECT_FALSE(shared(problem));
}

TEST(QueryValuesPlan, NamesWhatItLacks) {
  const auto rejections = [](AttentionProblem problem, auto change) {
    change(problem);
    problem = gpu::planned_problem(problem);
    const auto hopper = sm90::forward_config(problem, kH200).status().message();
    EXPECT_EQ(sm80::forward_config(problem, kH200).status().message(), hopper);
    return std::string(hopper);
  };
  EXPECT_EQ(rejections(query_values_problem(64, 72), [](AttentionProblem&) {}),
            "qv is given, head_dim is 64 and head_dim_v 72: the gpu engine takes multiples of 64 as head_dim_v, and "
            "576 columns of both together");
  EXPECT_EQ(rejections(query_values_problem(128, 512), [](AttentionProblem&) {}),
            "qv is given, head_dim is 128 and head_dim_v 512: the gpu engine takes multiples of 64 as head_dim_v, and "
            "576 columns of both together");
  EXPECT_EQ(rejections(query_values_problem(64, 512),
                       [](AttentionProblem& p) { p.stored = {.dtype = DType::int8, .k_rows = 1, .v_rows = 1}; }),
            "qv is given, q is bfloat16 and k is int8: the gpu engine takes it where all are float16 or bfloat16");
  AttentionProblem problem = query_values_problem(64, 512);
  problem.dtype = DType::float32;
  EXPECT_EQ(sm80::forward_config(gpu::planned_problem(problem), kH200).status().message(),
            "qv is given, q is float32 and k is float32: the gpu engine takes it where all are float16 or bfloat16");
}

}  // namespace
}  // namespace strobe
