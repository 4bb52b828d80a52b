// SPDX-License-Identifier: Apache-2.0
// Deterministic gradients of grouped heads: by roles or in order, and their sections.
#include <gtest/gtest.h>

#include "gpu/plan/plan_problem.h"
#include "sm90/backward_plan.h"

namespace strobe::sm90 {
namespace {

using test::grouped_causal;
using test::kH100;
using test::kH200;

/// By roles, grouped: L2 holds six key heads of an H200, of which eight are one section; and five of an H100.
TEST(Sm90GroupedBackwardPlan, FewSectionsOfGroupedHeadsByRolesAreAsLong) {
  const auto section_heads = [](const DeviceShape& shape, std::int64_t batch, std::int64_t seqlen) {
    AttentionProblem problem = grouped_causal(batch, 32, 8, seqlen, 128);
    problem.deterministic = true;
    const backward::Config config = *backward_config(problem, shape);
    EXPECT_TRUE(config.by_roles);
    return backward_plan(problem, shape, config).params.section_heads;
  };
  EXPECT_EQ(section_heads(kH200, 1, 2048), 8);
  EXPECT_EQ(section_heads(kH100, 1, 2048), 4);
  EXPECT_EQ(section_heads(kH200, 1, 4096), 4);
  EXPECT_EQ(section_heads(kH200, 8, 4096), 3);  // many sections
}

/// log: bwd-ordered-grouped-full
TEST(Sm90GroupedBackwardPlan, FewBlocksOfGroupedHeadsWithoutAMaskDoNotWaitForOneAnother) {
  const auto by_roles = [](std::int64_t batch, std::int64_t heads_kv, std::int64_t seqlen, std::int64_t head_dim) {
    AttentionProblem problem = grouped_causal(batch, 32, heads_kv, seqlen, head_dim);
    problem.causal = CausalMask::none;
    problem.deterministic = true;
    return backward_config(problem, kH200)->by_roles;
  };
  for (const std::int64_t seqlen : {512, 2048, 8192}) EXPECT_TRUE(by_roles(1, 8, seqlen, 128)) << seqlen;
  EXPECT_FALSE(by_roles(1, 8, 16384, 128));
  EXPECT_FALSE(by_roles(4, 8, 4096, 128));
  EXPECT_FALSE(by_roles(1, 32, 4096, 128));  // one query head a key head
  EXPECT_FALSE(by_roles(1, 8, 4096, 64));
}

}  // namespace
}  // namespace strobe::sm90
