// SPDX-License-Identifier: Apache-2.0
// What kernels keep of a text in shared memory fits beside all else, whatever the call.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>

#include "expression/formula.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm90/backward/bias_gradient/config.h"
#include "kernels/sm90/backward/smem.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/backward_kernels.h"
#include "sm90/backward_plan.h"
#include "sm90/backward_tiles.h"
#include "strobe/expression.h"

namespace strobe::sm90 {
namespace {

using test::kH200;

/// As many values of queries, keys and diagonals as are kept.
constexpr const char* kLongest =
    "score * t[q] + abs(score) * t[q + 1] + max(score, 1.0) * t[q + 2] + min(score, 1.0) * t[k] + score * score * "
    "t[k + 1] + exp(score) * t[k + 2] + tanh(score) * t[k - q + 9] + sigmoid(score) * t[q - k + 9]";

AttentionProblem problem_with_text(std::int64_t head_dim) {
  AttentionProblem problem = test::problem_of(4096, head_dim, head_dim);
  problem.expression.formula = ScoreFunction::parse(kLongest, "", {{"t", DType::float32, 1}})->formula();
  return problem;
}

const std::initializer_list<void (*)(AttentionProblem&)> kChanges = {
    [](AttentionProblem&) {},
    [](AttentionProblem& p) { p.causal = CausalMask::bottom_right; },
    [](AttentionProblem& p) { p.packed_q = p.packed_k = true; },
    [](AttentionProblem& p) { p.page_size = 16; },
    [](AttentionProblem& p) { p.seqlen_q = 1, p.total_q = p.batch; },
    [](AttentionProblem& p) { p.stored = {DType::int8, 1, 1}; },
    [](AttentionProblem& p) { p.modifiers.has_bias = true; },
    [](AttentionProblem& p) { p.modifiers.block_size = 64; },
    [](AttentionProblem& p) { p.modifiers.block_size = 128; },
    [](AttentionProblem& p) { p.row_invariant = true; },
    [](AttentionProblem& p) { p.row_invariant = true, p.packed_q = p.packed_k = true; },
    [](AttentionProblem& p) { p.row_invariant = true, p.seqlen_q = 1, p.total_q = p.batch, p.page_size = 16; },
};

TEST(Sm90TextMemory, OfAForwardFits) {
  for (std::int64_t head_dim = 32; head_dim <= 256; head_dim += 32) {
    for (const auto& change : kChanges) {
      AttentionProblem problem = problem_with_text(head_dim);
      change(problem);
      const auto fits = [&](const forward::Config& config) {
        EXPECT_LE(smem_plan(config).total_bytes, config.ctas_per_sm == 2 ? kMaxSmemBytesOfTwo : kMaxSmemBytes)
            << head_dim;
      };
      const forward::Config config = test::config_of(problem);
      EXPECT_EQ(config.rule.text.query_values, 3);
      EXPECT_EQ(config.rule.text.key_values, 3);
      EXPECT_EQ(config.rule.text.diagonal_values, 2);
      fits(config);
      if (const auto aligned = aligned_bias_config(problem, kH200, config)) fits(*aligned);
    }
  }
}

TEST(Sm90TextMemory, OfABackwardFits) {
  for (std::int64_t head_dim = 32; head_dim <= 256; head_dim += 32) {
    for (const auto& change : kChanges) {
      for (const std::uint32_t gradients : {0U, 1U}) {
        AttentionProblem problem = problem_with_text(head_dim);
        problem.pass = Pass::backward;
        problem.expression.gradients = gradients;
        change(problem);
        if (problem.page_size != 0 || problem.stored.given()) continue;
        const backward::Config config = *backward_config(problem, kH200);
        EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes) << head_dim;
        EXPECT_LE(bias_gradient_smem_plan(bias_gradient_config(config)).total_bytes, kMaxSmemBytes) << head_dim;
        const backward::Config captures = capture_gradient_config(config, false);
        EXPECT_LE(bias_gradient_smem_plan(captures).total_bytes, kMaxSmemBytes) << head_dim;
        EXPECT_EQ(keeps_text(captures), head_dim <= kMostTextColumns);
        for (const backward::Config& choice : tile_choices(problem)) {
          EXPECT_LE(smem_plan(choice).total_bytes, kMaxSmemBytes) << head_dim;
        }
      }
    }
  }
}

TEST(Sm90TextMemory, OfGradientsOfCapturesFits) {
  constexpr const char* kTexts[] = {kLongest, "score * t[head]", "score + t[k - q + 4095]", "score + t[q] - t[k]",
                                    "score + t[int(score) + 3]"};
  for (const char* text : kTexts) {
    for (const auto& change : kChanges) {
      for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
        for (const std::int64_t head_dim_v : {head_dim, std::int64_t{64}, std::int64_t{256}}) {
          AttentionProblem problem = test::problem_of(4096, head_dim, head_dim_v);
          problem.expression.formula = ScoreFunction::parse(text, "", {{"t", DType::float32, 1}})->formula();
          problem.expression.gradients = 1;
          problem.pass = Pass::backward;
          change(problem);
          if (problem.page_size != 0 || problem.stored.given()) continue;
          for (const bool wide_bias : {false, true}) {
            problem.modifiers.bias_dtype = wide_bias ? DType::float32 : DType::bfloat16;
            const Result<backward::Config> config = backward_config(problem, kH200);
            ASSERT_TRUE(config.ok()) << config.status().message();
            int kernels = 0;
            const auto fits = [&](const auto&, int bytes, const auto&, const auto&) {
              EXPECT_LE(bytes, kMaxSmemBytes) << text << " of " << head_dim << " and " << head_dim_v;
              ++kernels;
            };
            BackwardKernels places;
            for_each_kernel(problem, backward_plan(problem, kH200, *config), places, fits);
            EXPECT_GE(kernels, 5);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace strobe::sm90
