// SPDX-License-Identifier: Apache-2.0
// Row-invariant calls: what every plan of a device has in common.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "gpu/plan/devices.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm80/forward/smem.h"
#include "sm80/forward_plan.h"

namespace strobe::sm80 {
namespace {

using test::kDevices;
using test::problem_of;

AttentionProblem row_invariant(std::int64_t keys, std::int64_t head_dim, std::int64_t head_dim_v) {
  AttentionProblem problem = problem_of(keys, head_dim, head_dim_v);
  problem.row_invariant = true;
  return problem;
}

/// Of 1, 4, 16 and more queries, with a mask or without, with lengths on the device, and in pages.
void expect_one_grid_of_keys(const DeviceShape& shape, std::int64_t head_dim, std::int64_t head_dim_v) {
  const forward::Config longest = *forward_config(row_invariant(100000, head_dim, head_dim_v), shape);
  EXPECT_GT(longest.segment_blocks, 0);
  for (const std::int64_t queries : {1, 4, 16, 50, 200, 5000}) {
    for (const std::int64_t keys : {100, 5000, 70000}) {
      for (int layout = 0; layout < 4; ++layout) {
        AttentionProblem problem = row_invariant(keys, head_dim, head_dim_v);
        problem.heads_kv = layout % 2 == 0 ? 8 : 2;
        problem.seqlen_q = queries;
        problem.total_q = queries * problem.batch;
        problem.causal = layout == 1 ? CausalMask::none : CausalMask::bottom_right;
        problem.has_seqused_k = layout > 1;
        problem.page_size = layout == 3 ? 12 : 0;
        const forward::Config config = *forward_config(problem, shape);
        EXPECT_EQ(config.block_n, longest.block_n) << queries << " queries, layout " << layout;
        EXPECT_EQ(config.key_groups, 1);
        if (keys > 4096) {
          EXPECT_EQ(config.segment_blocks, longest.segment_blocks);
        }
        EXPECT_LE(smem_plan(config).total_bytes, shared_bytes_of(shape, config.ctas_per_sm));
      }
    }
  }
}

TEST(Sm80ForwardPlan, RowInvariantCallsHaveOneGridOfKeys) {
  for (const auto& [name, shape] : kDevices) {
    for (const auto& [head_dim, head_dim_v] :
         {std::pair{32, 32}, {64, 64}, {96, 128}, {128, 128}, {192, 128}, {64, 256}, {256, 256}}) {
      SCOPED_TRACE(testing::Message() << name << ", head_dim " << head_dim << ", head_dim_v " << head_dim_v);
      expect_one_grid_of_keys(shape, head_dim, head_dim_v);
    }
  }
}

/// A prompt's CTAs keep what their segments leave: as much for each that runs at a time, however long the prompt is.
TEST(Sm80ForwardPlan, WhatSegmentsLeaveDoesNotGrowWithThePrompt) {
  const DeviceShape& shape = kDevices[0].shape;
  const auto plan_of = [&](std::int64_t keys) {
    const AttentionProblem problem = row_invariant(keys, 128, 128);
    return forward_plan(problem, shape, *forward_config(problem, shape));
  };
  EXPECT_EQ(workspace_bytes(plan_of(2048)), 0U);
  const ForwardPlan plan = plan_of(16384);
  ASSERT_TRUE(folds(plan.config));
  EXPECT_EQ(plan.workers, shape.multiprocessors * plan.config.ctas_per_sm);
  EXPECT_GE(workspace_bytes(plan), sizeof(float) * plan.workers * block_m(plan.config) * plan.config.head_dim_v);
  EXPECT_EQ(workspace_bytes(plan), workspace_bytes(plan_of(65536)));
}

}  // namespace
}  // namespace strobe::sm80
