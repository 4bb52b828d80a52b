#include "plan/hopper_forward.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/common/smem_plan.h"

namespace strobe::plan {
namespace {

constexpr HopperShape kH200{.multiprocessors = 132, .l2_bytes = 60 << 20};

AttentionProblem problem_of(std::int64_t seqlen, std::int64_t head_dim, std::int64_t head_dim_v) {
  AttentionProblem problem;
  problem.dtype = DType::bfloat16;
  problem.batch = 2;
  problem.heads_q = problem.heads_k = 8;
  problem.head_dim = head_dim;
  problem.head_dim_v = head_dim_v;
  problem.seqlen_q = problem.seqlen_k = seqlen;
  problem.total_q = problem.total_k = problem.batch * seqlen;
  problem.scale = 0.125F;
  return problem;
}

TEST(HopperForwardPlan, FitsForEveryHeadDim) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (std::int64_t head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8) {
      for (const std::int64_t seqlen : {1, 512, 16384}) {
        for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
          AttentionProblem problem = problem_of(seqlen, head_dim, head_dim_v);
          problem.causal = causal;
          const auto plan = hopper_forward_plan(problem, kH200);
          ASSERT_TRUE(plan.ok()) << plan.status().message();
          const KernelConfig& config = plan->config;
          EXPECT_GE(config.head_dim, head_dim);
          EXPECT_GE(config.head_dim_v, head_dim_v);
          EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes) << explain(problem, *plan);
          EXPECT_LE(threads_per_block(config), 1024);
          EXPECT_GE(plan->m_tiles * block_m(config), seqlen);
          EXPECT_EQ(plan->list != nullptr, config.listed);
        }
      }
    }
  }
}

TEST(HopperForwardPlan, NothingToComputeIsNoTiles) {
  for (auto change : {+[](AttentionProblem& p) {
                        p.batch = 0;
                        p.total_q = p.total_k = 0;
                      },
                      +[](AttentionProblem& p) { p.heads_q = p.heads_k = 0; },
                      +[](AttentionProblem& p) { p.seqlen_q = p.total_q = 0; }}) {
    AttentionProblem problem = problem_of(64, 64, 64);
    change(problem);
    const auto plan = hopper_forward_plan(problem, kH200);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->tiles, 0);
  }
}

TEST(HopperForwardPlan, WindowsAndCausalMasksMakeOneBand) {
  AttentionProblem problem = problem_of(64, 64, 64);
  EXPECT_FALSE(band_of(problem).bounded_left || band_of(problem).bounded_right);
  problem.window = {5, 7};
  EXPECT_EQ(band_of(problem).left, 5);
  EXPECT_EQ(band_of(problem).right, 7);
  problem.causal = CausalMask::top_left;
  EXPECT_EQ(band_of(problem).right, 0);
  EXPECT_FALSE(band_of(problem).bottom_right);
  problem.window = {};
  EXPECT_TRUE(band_of(problem).bounded_right);
  EXPECT_FALSE(band_of(problem).bounded_left);
}

TEST(HopperForwardPlan, RefusesInASentence) {
  const auto refusal = [](auto change) {
    AttentionProblem problem = problem_of(64, 64, 64);
    change(problem);
    return std::string(hopper_forward_plan(problem, kH200).status().message());
  };
  EXPECT_EQ(refusal([](AttentionProblem& p) { p.dtype = DType::float32; }),
            "q is float32: the hopper engine computes in float16 and bfloat16");
  EXPECT_EQ(refusal([](AttentionProblem& p) { p.head_dim = 36; }),
            "head_dim is 36: the hopper engine takes multiples of 8 up to 256");
  EXPECT_EQ(refusal([](AttentionProblem& p) { p.head_dim_v = 264; }),
            "head_dim_v is 264: the hopper engine takes multiples of 8 up to 256");
  EXPECT_EQ(refusal([](AttentionProblem& p) { p.scale = -0.5F; }),
            "scale is -0.5: the hopper engine takes positive scales");
}

}  // namespace
}  // namespace strobe::plan
