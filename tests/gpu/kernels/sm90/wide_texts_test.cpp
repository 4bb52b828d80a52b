// SPDX-License-Identifier: Apache-2.0
// The kernels of heads of more than 256 columns with score and mask expressions, biases, block masks and without a
// softmax compile, without a GPU. Gradients keep nothing in local memory.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "gpu/choose_family.h"
#include "gpu/kernels/sm90/compiled_kernels.h"
#include "gpu/plan/plan_problem.h"
#include "sm90/backward_plan.h"
#include "sm90/backward_variant.h"
#include "sm90/forward_plan.h"
#include "sm90/forward_variant.h"
#include "strobe/expression.h"

namespace strobe::sm90 {
namespace {

struct WideText {
  const char* name;
  const char* score;
  const char* mask;
  std::vector<CaptureType> captures;
};

std::ostream& operator<<(std::ostream& out, const WideText& text) { return out << text.name; }

AttentionProblem wide_problem(const WideText& text) {
  AttentionProblem problem = test::problem_of(4096, 512, 512);
  problem.expression.formula = ScoreFunction::parse(text.score, text.mask, text.captures)->formula();
  return problem;
}

using Setting = void (*)(AttentionProblem&);

void set_many_options(AttentionProblem& problem) {
  problem.packed_q = problem.packed_k = true;
  problem.causal = CausalMask::bottom_right;
  problem.window.left = 1023;
  problem.softcap = 30.0F;
  problem.modifiers.has_alibi = true;
}

void set_pages_of_few_queries(AttentionProblem& problem) {
  problem.seqlen_q = problem.total_q = 1;
  problem.has_seqused_k = true;
  problem.page_size = 16;
}

class WideKernels : public CompiledKernels {
 protected:
  void expect_gradients_compile(AttentionProblem problem) const {
    problem.pass = Pass::backward;
    const Result<backward::Config> config = backward_config(problem, test::kH100);
    ASSERT_TRUE(config.ok()) << config.status().message();
    const BackwardPlan plan = backward_plan(problem, test::kH100, *config);
    expect_compiles_without_spills(backward_variant(plan.config));
    expect_compiles_without_spills(query_gradient_variant(plan.query));
  }
};

class Sm90WideTexts : public WideKernels, public testing::WithParamInterface<WideText> {};

// Once or twice a block of keys one register waits in local memory while a product is issued.
TEST_P(Sm90WideTexts, Compile) {
  constexpr int kMostSpilled = 64;
  for (const Setting set : {set_many_options, set_pages_of_few_queries}) {
    AttentionProblem problem = wide_problem(GetParam());
    set(problem);
    expect_compiles_with_spills_to(kMostSpilled,
                                   forward_variant(*forward_config(gpu::planned_problem(problem), test::kH200)));
  }
}

TEST_P(Sm90WideTexts, GradientsCompile) {
  AttentionProblem problem = wide_problem(GetParam());
  set_many_options(problem);
  expect_gradients_compile(gpu::planned_problem(problem));
}

const std::vector<WideText> kWideTexts{
    {"relative_bias", "score + bias[head][q - k + q_len - 1]", "", {{"bias", DType::float32, 2}}},
    {"tanh_and_more", "30 * tanh(score / 30) + 0.1 * score", "k <= q || k < 512", {}},
    {"document", "", "k <= q && document[k] == document[q]", {{"document", DType::int32, 1}}},
};

INSTANTIATE_TEST_SUITE_P(All, Sm90WideTexts, testing::ValuesIn(kWideTexts),
                         [](const auto& one) { return std::string(one.param.name); });

/// What else takes registers.
const std::vector<Setting> kSettings{
    [](AttentionProblem& p) {
      p.modifiers.has_bias = p.modifiers.has_alibi = true;
      p.dropout = 0.1F;
      p.window.left = 1023;
    },
    [](AttentionProblem& p) {
      set_many_options(p);
      p.modifiers.block_size = 128;
      p.dropout = 0.1F;
    },
    [](AttentionProblem& p) {
      set_many_options(p);
      p.normalize = Normalization::none;
      p.modifiers.has_bias = true;
    },
};

TEST_F(WideKernels, GradientsBesideOptions) {
  for (const Setting set : kSettings) {
    AttentionProblem problem = test::problem_of(4096, 512, 512);
    set(problem);
    expect_gradients_compile(problem);
  }
}

TEST_F(WideKernels, RowInvariantCalls) {
  constexpr int kMostSpilled = 64;
  for (const Setting set : {set_many_options, set_pages_of_few_queries}) {
    AttentionProblem problem = test::problem_of(4096, 576, 512);
    set(problem);
    problem.row_invariant = true;
    expect_compiles_with_spills_to(kMostSpilled, forward_variant(*forward_config(problem, test::kH200)));
  }
}

TEST_F(WideKernels, WithoutASoftmax) {
  for (const char* const score : {"sigmoid(score)", ""}) {
    AttentionProblem problem = test::problem_of(4096, 512, 512);
    if (*score != '\0') problem = wide_problem({"", score, "", {}});
    problem.normalize = Normalization::none;
    expect_compiles_without_spills(forward_variant(*forward_config(problem, test::kH200)));
  }
}

}  // namespace
}  // namespace strobe::sm90
