// SPDX-License-Identifier: Apache-2.0
#include "sm80/backward_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "gpu/plan/devices.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm80/backward/smem.h"
#include "plan_options.h"
#include "sm80/backward_variant.h"
#include "sm80/supported.h"

namespace strobe::sm80 {
namespace {

using test::kDevices;
using test::problem_of;

/// Of an A100 where nothing else is said.
backward::Config backward_config_of(const AttentionProblem& problem, const DeviceShape& shape = kDevices[0].shape) {
  return *backward_config(problem, shape);
}

TEST(Sm80BackwardPlan, FitsEveryDevice) {
  for (const auto& [name, shape] : kDevices) {
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (const std::int64_t head_dim_v : {std::int64_t{64}, std::int64_t{128}, std::int64_t{256}, head_dim}) {
        for (const AttentionProblem& problem : test::problems_with_options(problem_of(1000, head_dim, head_dim_v))) {
          const backward::Config config = backward_config_of(problem, shape);
          SCOPED_TRACE(std::string(name) + "\n" + explain(problem, shape, backward_plan(problem, shape, config)));
          EXPECT_GE(config.head_dim, head_dim);
          EXPECT_GE(config.head_dim_v, head_dim_v);
          EXPECT_TRUE(is_consistent(config));
          EXPECT_LE(smem_plan(config).total_bytes, shared_bytes_of(shape, config.ctas_per_sm));
          EXPECT_LE(finish_smem_bytes(config), 48 << 10);
          EXPECT_LE(threads_per_block(config) * config.ctas_per_sm, 1024);
        }
      }
    }
  }
}

/// The tiles that docs/sm80-kernels.md lists, by shared memory.
TEST(Sm80BackwardPlan, WideHeadsFitEveryDevice) {
  for (const auto& [name, shape] : kDevices) {
    for (const auto& [head_dim, head_dim_v] : {std::pair{264, 264}, {384, 384}, {512, 512}, {8, 512}, {512, 8}}) {
      for (AttentionProblem problem : test::problems_with_options(problem_of(1000, head_dim, head_dim_v))) {
        problem.pass = Pass::backward;
        problem.modifiers.has_bias = false;
        problem.modifiers.block_size = 0;
        const backward::Config config = *backward_config(problem, shape);
        SCOPED_TRACE(std::string(name) + "\n" + explain(problem, shape, backward_plan(problem, shape, config)));
        EXPECT_TRUE(is_consistent(config));
        EXPECT_GE(config.head_dim, head_dim);
        EXPECT_GE(config.head_dim_v, head_dim_v);
        EXPECT_LE(smem_plan(config).total_bytes, shared_bytes_of(shape, config.ctas_per_sm));
        EXPECT_LE(finish_smem_bytes(config), shared_bytes_of(shape, 1));
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Sm80BackwardPlan, TakesTheTilesOfTheTable) {
  struct Row {
    std::int64_t head_dim;
    int shared_kb, keys, queries, stages, ctas;
  };
  for (const Row& row : {Row{64, 227, 128, 64, 1, 2}, Row{64, 163, 128, 64, 1, 2}, Row{64, 99, 128, 64, 2, 1},
                         Row{96, 227, 128, 64, 2, 1}, Row{96, 163, 128, 64, 2, 1}, Row{96, 99, 64, 64, 2, 1},
                         Row{128, 227, 128, 64, 2, 1}, Row{128, 163, 128, 64, 2, 1}, Row{128, 99, 64, 64, 1, 1},
                         Row{192, 227, 64, 64, 2, 1}, Row{192, 163, 64, 64, 2, 1}, Row{192, 99, 32, 64, 1, 1},
                         Row{256, 227, 64, 64, 2, 1}, Row{256, 163, 64, 64, 1, 1}, Row{256, 99, 32, 32, 1, 1}}) {
    SCOPED_TRACE(testing::Message() << "head_dim " << row.head_dim << ", " << row.shared_kb << " KB");
    DeviceShape shape = kDevices[0].shape;
    shape.shared_bytes = row.shared_kb << 10;
    const backward::Config config = backward_config_of(problem_of(4096, row.head_dim, row.head_dim), shape);
    EXPECT_EQ(block_n(config), row.keys);
    EXPECT_EQ(config.block_m, row.queries);
    EXPECT_EQ(config.stages, row.stages);
    EXPECT_EQ(config.ctas_per_sm, row.ctas);
  }
}

/// Every key and every query belongs to one block, on every device.
TEST(Sm80BackwardPlan, CoversKeysAndQueries) {
  for (const auto& [name, shape] : kDevices) {
    for (const std::int64_t seqlen : {1, 64, 1000, 5000}) {
      for (const bool packed : {false, true}) {
        AttentionProblem problem = problem_of(seqlen, 128, 128);
        problem.packed_q = problem.packed_k = packed;
        const BackwardPlan plan = backward_plan(problem, shape, backward_config_of(problem, shape));
        const std::int64_t sequences = problem.batch + (packed ? 1 : 0);
        EXPECT_GE(plan.params.n_blocks * block_n(plan.config), seqlen);
        EXPECT_GE(plan.params.m_blocks * plan.config.block_m, seqlen);
        EXPECT_EQ(plan.items, sequences * problem.heads_kv * plan.params.n_blocks);
        EXPECT_EQ(plan.query_blocks, sequences * problem.heads_q * plan.params.m_blocks);
        EXPECT_GE(plan.params.section_heads, 1);
        EXPECT_LE(plan.params.section_heads, sequences * problem.heads_kv);
      }
    }
  }
}

/// What the step before the kernel clears: whole 16 bytes, from the sums of dQ to the end.
TEST(Sm80BackwardPlan, ClearsSumsAndSemaphores) {
  for (const bool deterministic : {false, true}) {
    AttentionProblem problem = problem_of(1000, 128, 128);
    problem.deterministic = deterministic;
    const BackwardPlan plan = backward_plan(problem, kDevices[0].shape, backward_config_of(problem));
    const BackwardWorkspace& workspace = plan.workspace;
    const std::size_t blocks = static_cast<std::size_t>(plan.params.heads) * plan.params.query_blocks;
    EXPECT_EQ(plan.config.ordered, deterministic);
    EXPECT_EQ(workspace.dq_sum + workspace.zeros_bytes, workspace.total_bytes);
    EXPECT_EQ(workspace.zeros_bytes % 16, 0U);
    EXPECT_GE(workspace.dq_semaphores - workspace.dq_sum, 4 * blocks * plan.config.block_m * 128);
    EXPECT_GE(workspace.total_bytes - workspace.dq_semaphores, deterministic ? 4 * blocks : 0);
  }
}

TEST(Sm80BackwardPlan, NothingToComputeIsNoLaunch) {
  for (auto change : {+[](AttentionProblem& p) {
                        p.batch = 0;
                        p.total_q = p.total_k = 0;
                      },
                      +[](AttentionProblem& p) { p.heads_q = p.heads_kv = 0; }}) {
    AttentionProblem problem = problem_of(64, 64, 64);
    change(problem);
    EXPECT_EQ(backward_plan(problem, kDevices[0].shape, backward_config_of(problem)).items, 0);
  }
  AttentionProblem problem = problem_of(64, 64, 64);
  problem.seqlen_q = problem.total_q = 0;
  const BackwardPlan plan = backward_plan(problem, kDevices[0].shape, backward_config_of(problem));
  EXPECT_GT(plan.items, 0);  // keys get zeros
  EXPECT_EQ(plan.query_blocks, 0);
}

TEST(Sm80BackwardPlan, NamesWhatTheEngineLacks) {
  AttentionProblem problem = problem_of(64, 64, 64);
  problem.pass = Pass::backward;
  problem.dtype = DType::float32;
  problem.head_dim = 136;
  EXPECT_EQ(backward_config(problem, kDevices[0].shape).status().message(),
            "head_dim is 136 and q is float32: the sm80 kernels have gradients up to 128");
}

TEST(Sm80BackwardPlan, FloatsFitEveryDevice) {
  for (const auto& [name, shape] : kDevices) {
    for (std::int64_t head_dim = 8; head_dim <= 128; head_dim += 8) {
      for (const std::int64_t head_dim_v : {std::int64_t{32}, std::int64_t{128}, head_dim}) {
        for (AttentionProblem problem : test::problems_with_options(problem_of(1000, head_dim, head_dim_v))) {
          problem.dtype = DType::float32;
          problem.pass = Pass::backward;
          if (!check_supported(problem).ok()) continue;  // dropout with a bias or window
          const backward::Config config = backward_config_of(problem, shape);
          SCOPED_TRACE(std::string(name) + "\n" + explain(problem, shape, backward_plan(problem, shape, config)));
          EXPECT_TRUE(is_consistent(config));
          EXPECT_GE(config.head_dim, head_dim);
          EXPECT_GE(config.head_dim_v, head_dim_v);
          EXPECT_LE(smem_plan(config).total_bytes, shared_bytes_of(shape, config.ctas_per_sm));
        }
      }
    }
  }
}

TEST(Sm80BackwardVariant, IsCompiledForTheFirstMinorOfItsMajor) {
  for (const auto& [name, shape] : kDevices) {
    const std::string architecture = "sm_" + std::to_string(shape.compute_major) + "0";
    const backward::Config config = backward_config_of(problem_of(64, 64, 64), shape);
    EXPECT_EQ(backward_variant(config, shape).architecture, architecture);
    EXPECT_EQ(finish_variant(config, shape).architecture, architecture);
    EXPECT_EQ(bias_gradient_variant(config, shape).architecture, architecture);
  }
}

}  // namespace
}  // namespace strobe::sm80
