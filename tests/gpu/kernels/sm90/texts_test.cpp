// SPDX-License-Identifier: Apache-2.0
// Kernels compile with a text's code, without spills.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/auxiliary/text_blocks.h"
#include "gpu/choose_family.h"
#include "gpu/kernels/sm90/compiled_kernels.h"
#include "gpu/plan/sm90/text_problem.h"
#include "gpu/plan/text_blocks.h"
#include "gpu/variant/architecture.h"
#include "sm90/backward_plan.h"
#include "sm90/backward_variant.h"
#include "sm90/forward_plan.h"
#include "sm90/forward_variant.h"

namespace strobe::sm90 {
namespace {

using test::kH200, test::kSlope, test::kDocument, test::problem_with, test::Text;

const std::vector<Text> kTexts{
    {"alibi", "score + slope[head] * (k - q)", "", {kSlope}},
    {"relative_bias", "score + bias[head][q - k + q_len - 1]", "", {{"bias", DType::float32, 2}}},
    {"tanh_and_more", "30 * tanh(score / 30) + 0.1 * score", "k <= q || k < 512", {}},
    {"temperature", "score * slope[head]", "", {kSlope}},
    {"document", "", "k <= q && document[k] == document[q]", {kDocument}},
};

class Sm90Texts : public CompiledKernels, public testing::WithParamInterface<Text> {};

TEST_P(Sm90Texts, Compile) {
  AttentionProblem problem = problem_with(GetParam());
  const AttentionProblem forward = gpu::planned_problem(problem);
  expect_compiles_without_spills(forward_variant(*forward_config(forward, kH200)));
  if (gpu::takes_text_blocks(forward)) expect_compiles_without_spills(gpu::text_blocks_variant(forward, gpu::kSm90a));
  problem.pass = Pass::backward;
  problem.expression.gradients = problem.expression.formula->reads().empty() ? 0 : 1;
  const backward::Config config = *backward_config(gpu::planned_problem(problem), kH200);
  expect_compiles_without_spills(backward_variant(config));
  if (problem.expression.gradients == 0) return;
  for (const bool ordered : {false, true}) {
    expect_compiles_without_spills(capture_gradient_variant(capture_gradient_config(config, ordered)));
  }
}

// Where bits of a mask's pairs would take too much memory, kernels look at the text.
TEST_F(CompiledKernels, MasksWhoseBitsAreTooLarge) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const std::int64_t head_dim : {64, 128}) {
      AttentionProblem problem = problem_with(kTexts.back(), 4096, head_dim);
      problem.pass = pass;
      problem = gpu::planned_problem(problem);
      ASSERT_TRUE(problem.expression.mask_is_bits);
      problem.expression.mask_is_bits = false;
      expect_compiles_without_spills(pass == Pass::forward ? forward_variant(*forward_config(problem, kH200))
                                                           : backward_variant(*backward_config(problem, kH200)));
    }
  }
}

using Change = void (*)(AttentionProblem&);

constexpr Change kChanges[] = {
    [](AttentionProblem&) {},
    [](AttentionProblem& p) { p.causal = CausalMask::bottom_right; },
    [](AttentionProblem& p) { p.window = {100, 100}; },
    [](AttentionProblem& p) { p.softcap = 30.0F; },
    [](AttentionProblem& p) { p.modifiers.has_alibi = true; },
    [](AttentionProblem& p) { p.modifiers.has_bias = true; },
    [](AttentionProblem& p) { p.modifiers.has_sink = true; },
    [](AttentionProblem& p) { p.dropout = 0.1F; },
    [](AttentionProblem& p) { p.normalize = Normalization::none; },
    [](AttentionProblem& p) { p.packed_q = p.packed_k = true; },
};

// Of packed sequences, and beside a text of scores: kernels that find rows, or have a text, beside tags of keys.
TEST_F(CompiledKernels, MasksAsBitsOfNarrowHeadsBesideTwoThings) {
  for (const Change change : kChanges) {
    for (const char* const score : {"", "score + slope[q]"}) {
      AttentionProblem problem = problem_with({"", score, "document[k] == document[q]", {kSlope, kDocument}}, 4096, 64);
      problem.packed_q = problem.packed_k = *score == '\0';
      change(problem);
      problem = gpu::planned_problem(problem);
      ASSERT_TRUE(problem.expression.mask_is_bits);
      expect_compiles_without_spills(forward_variant(*forward_config(problem, kH200)));
    }
  }
}

TEST_F(CompiledKernels, MasksAsBitsBesideOptions) {
  for (const Change change : kChanges) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        AttentionProblem problem = problem_with({"", "", "document[k] == document[q]", {kDocument}}, 4096, head_dim);
        problem.pass = pass;
        change(problem);
        problem = gpu::planned_problem(problem);
        ASSERT_TRUE(problem.expression.mask_is_bits);
        const bool is_forward = pass == Pass::forward;
        // A bias in float32 beside 256 columns leaves too few registers: no narrower block divides a mask's.
        const int most_spilled = is_forward && problem.modifiers.has_bias && head_dim == 256 ? 24 : 0;
        expect_compiles_with_spills_to(most_spilled, is_forward ? forward_variant(*forward_config(problem, kH200))
                                                                : backward_variant(*backward_config(problem, kH200)));
      }
    }
  }
}

TEST_F(CompiledKernels, WithoutASoftmax) {
  for (const char* const score : {"sigmoid(score)", ""}) {
    for (const std::int64_t head_dim : {64, 128}) {
      AttentionProblem problem = test::problem_of(4096, head_dim, head_dim);
      if (*score != '\0') problem = problem_with({"", score, "", {}}, 4096, head_dim);
      problem.normalize = Normalization::none;
      expect_compiles_without_spills(forward_variant(*forward_config(problem, kH200)));
      problem.pass = Pass::backward;
      expect_compiles_without_spills(backward_variant(*backward_config(problem, kH200)));
    }
  }
}

TEST_F(CompiledKernels, RowInvariantTexts) {
  for (const Text& text : {Text{"", "score + bias[head][k - q + k_len]", "", {{"bias", DType::float32, 2}}},
                           Text{"", "20 * tanh(score / 20)", "k < 40 || k > q_len", {}}}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const std::int64_t queries : {1, 4096}) {
        AttentionProblem problem = problem_with(text, 4096, head_dim);
        problem.seqlen_q = queries;
        problem.total_q = problem.batch * queries;
        problem.row_invariant = true;
        const AttentionProblem planned = gpu::planned_problem(problem);
        EXPECT_EQ(planned.modifiers.block_size, 0);
        const runtime::Variant variant = forward_variant(*forward_config(planned, kH200));
        EXPECT_EQ(variant.options, std::vector<std::string>{"--fmad=false"});
        expect_compiles_without_spills(variant);
      }
    }
  }
}

TEST_F(CompiledKernels, GradientsUnderDropout) {
  for (const char* const score : {"score + slope[head] * (k - q)", "tanh(score) * slope[head]"}) {
    for (const std::int64_t head_dim : {64, 128}) {
      AttentionProblem problem = problem_with({"", score, "", {kSlope}}, 4096, head_dim);
      problem.pass = Pass::backward;
      problem.dropout = 0.1F;
      problem.expression.gradients = 1;
      const backward::Config config = *backward_config(problem, kH200);
      expect_compiles_without_spills(backward_variant(config));
      expect_compiles_without_spills(capture_gradient_variant(capture_gradient_config(config, false)));
    }
  }
}

TEST_F(CompiledKernels, GradientsOfCapturesWithoutASoftmax) {
  AttentionProblem problem = problem_with({"", "sigmoid(score * slope[head])", "", {kSlope}}, 4096, 64);
  problem.normalize = Normalization::none;
  problem.pass = Pass::backward;
  problem.expression.gradients = 1;
  const backward::Config config = *backward_config(gpu::planned_problem(problem), kH200);
  expect_compiles_without_spills(capture_gradient_variant(capture_gradient_config(config, false)));
}

INSTANTIATE_TEST_SUITE_P(All, Sm90Texts, testing::ValuesIn(kTexts),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace strobe::sm90
