// SPDX-License-Identifier: Apache-2.0
// Score and mask expressions in plans: the rule that names a text's code, options in the place of texts that say the
// same, and what cannot be combined.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "expression/formula.h"
#include "gpu/auxiliary/exact_captures.h"
#include "gpu/auxiliary/text_blocks.h"
#include "gpu/choose_family.h"
#include "gpu/params/score.h"
#include "gpu/plan/sm90/text_problem.h"
#include "gpu/plan/supported.h"
#include "gpu/variant/architecture.h"
#include "gpu/variant/text_code.h"
#include "sm80/supported.h"
#include "sm90/backward_plan.h"
#include "sm90/backward_variant.h"
#include "sm90/forward_plan.h"
#include "sm90/forward_variant.h"
#include "sm90/shown_blocks.h"
#include "sm90/supported.h"
#include "strobe/expression.h"

namespace strobe::sm90 {
namespace {

using test::kDocument, test::kH200, test::kSlope, test::problem_with, test::Text;

TEST(TextRules, NameTheCode) {
  const TextRule slope = gpu::text_rule(problem_with({"", "score + slope[head] * (k - q)", "", {kSlope}}));
  EXPECT_TRUE(slope.score);
  EXPECT_FALSE(slope.mask || slope.slope || slope.wide_slope);
  EXPECT_EQ(slope, gpu::text_rule(problem_with({"", "score + slope[head]*(k - q)", "", {kSlope}}, 512, 64)));
  const TextRule other = gpu::text_rule(problem_with({"", "score + slope[head] * (q - k)", "", {kSlope}}));
  EXPECT_FALSE(other == slope);
  EXPECT_NE(gpu::code_of(other), gpu::code_of(slope));
  EXPECT_NE(gpu::code_of(slope).find("score_of"), std::string::npos);
  EXPECT_EQ(gpu::code_of(TextRule{}), "");
}

TEST(TextRules, KnowHowLargeASlopeIs) {
  const auto rule = [](const char* score) { return gpu::text_rule(problem_with({"", score, "", {kSlope}})); };
  EXPECT_FALSE(rule("score + 1.0").slope);
  EXPECT_TRUE(rule("30 * tanh(score / 30) + score * 0.5").slope);
  EXPECT_FALSE(rule("30 * tanh(score / 30) + score * 0.5").wide_slope);
  EXPECT_TRUE(rule("score * slope[head]").wide_slope);
}

TEST(TextOptions, SayWhatTextsSay) {
  const auto planned = [](const char* score, const char* mask) {
    return gpu::planned_problem(problem_with({"", score, mask, {kSlope}}));
  };
  EXPECT_EQ(planned("", "k <= q + k_len - q_len").causal, CausalMask::bottom_right);
  EXPECT_FALSE(planned("", "k <= q").expression.given());
  const AttentionProblem window = planned("", "k <= q && q - k < 512");
  EXPECT_EQ(window.causal, CausalMask::bottom_right);
  EXPECT_EQ(window.window.left, 511);
  EXPECT_EQ(planned("30 * tanh(score / 30)", "").softcap, 30.0F);
  const AttentionProblem both = planned("score + slope[head]", "!(k > q)");
  EXPECT_EQ(both.causal, CausalMask::bottom_right);
  EXPECT_TRUE(gpu::text_rule(both).score);
  EXPECT_FALSE(gpu::text_rule(both).mask);
}

// Of captures in the place of a bias and slopes, which the problem says there could be.
TEST(TextOptions, SayBiasAndAlibi) {
  const CaptureType bias{"bias", DType::float32, 3};
  AttentionProblem problem =
      problem_with({"", "30 * tanh(score / 30) + bias[head][q][k] + slope[head] * (k - q)", "k <= q", {bias, kSlope}});
  EXPECT_TRUE(gpu::text_rule(gpu::planned_problem(problem)).score);
  problem.expression.bias_fits = problem.expression.slopes_fit = true;
  const AttentionProblem planned = gpu::planned_problem(problem);
  AttentionProblem option = problem_with({"", "", "k <= q", {}});
  option.modifiers.has_bias = option.modifiers.bias_per_head = option.modifiers.has_alibi = true;
  option.softcap = 30.0F;
  EXPECT_EQ(planned, gpu::planned_problem(option));
  // Gradients of captures that one kernel sums are another's as d_bias.
  problem.pass = Pass::backward;
  problem.expression.gradients = 1;
  const AttentionProblem backward = gpu::planned_problem(problem);
  EXPECT_TRUE(backward.wants_d_bias);
  EXPECT_FALSE(backward.expression.given());
}

TEST(TextOptions, StandBesideMasksThatSayMore) {
  const AttentionProblem planned =
      gpu::planned_problem(problem_with({"", "", "q - k < 300 && k <= q && (q - k) % 4 == 0", {}}));
  EXPECT_TRUE(gpu::has_text_mask(planned));
  EXPECT_EQ(planned.causal, CausalMask::bottom_right);
  EXPECT_EQ(planned.window.left, 299);
  EXPECT_EQ(planned.modifiers.block_size, 128);
}

TEST(Texts, ChooseTheDesignOfTheBackward) {
  const auto by_roles = [](const char* score, const char* mask) {
    AttentionProblem problem = problem_with({"", score, mask, {kSlope}});
    problem.pass = Pass::backward;
    return backward_config(gpu::planned_problem(problem), kH200)->by_roles;
  };
  EXPECT_FALSE(by_roles("score + slope[head] * (k - q)", "k <= q"));
  EXPECT_TRUE(by_roles("score + slope[head] * (k - q)", ""));  // for lack of registers
  EXPECT_FALSE(by_roles("", "k <= q || slope[k] > 0.0"));
  EXPECT_TRUE(by_roles("score * slope[head]", ""));
  EXPECT_TRUE(by_roles("score + slope[head]", "k <= q || k < 512"));
}

// In any order: with `deterministic` they go by roles at head_dim 128, for lack of registers.
TEST(Texts, AreSummedInOrderByRoles) {
  AttentionProblem problem = problem_with({"", "score + slope[q]", "k <= q", {kSlope}});
  problem.pass = Pass::backward;
  EXPECT_FALSE(backward_config(gpu::planned_problem(problem), kH200)->by_roles);
  problem.deterministic = true;
  EXPECT_TRUE(backward_config(gpu::planned_problem(problem), kH200)->by_roles);
}

TEST(Texts, TakeFourWarpgroupsOfNarrowHeads) {
  const auto tiles = [](const char* score, const char* mask) {
    const AttentionProblem problem = problem_with({"", score, mask, {kSlope}}, 4096, 64);
    return *forward_config(gpu::planned_problem(problem), kH200);
  };
  const forward::Config score = tiles("score + slope[q]", "k <= q");
  EXPECT_EQ(std::pair(score.consumer_warpgroups, score.ctas_per_sm), std::pair(4, 1));
  const forward::Config mask = tiles("", "k <= q || k < 512");
  EXPECT_EQ(std::pair(mask.consumer_warpgroups, mask.ctas_per_sm), std::pair(2, 2));
  const forward::Config both = tiles("score + slope[q]", "k <= q || k < 512");
  EXPECT_EQ(std::pair(both.consumer_warpgroups, both.ctas_per_sm), std::pair(2, 2));
}

// Where the host knows what a mask shows, tiles are dealt by that; what a capture holds the device alone knows: then
// CTAs take them.
TEST(Texts, AreDealtByWhatTheyShow) {
  const auto schedule = [](const char* mask) {
    const AttentionProblem problem = problem_with({"", "", mask, {kDocument}});
    return forward_config(gpu::planned_problem(problem), kH200)->schedule;
  };
  EXPECT_EQ(schedule("k <= q || k < 512"), Schedule::dealt);
  EXPECT_EQ(schedule("k <= q && (q - k) % 4 == 0"), Schedule::dealt);
  EXPECT_EQ(schedule("k <= q && document[k] == document[q]"), Schedule::taken);
  EXPECT_EQ(schedule("k <= q || (head == 0 && k < 512)"), Schedule::taken);
}

TEST(Texts, ShowBlocks) {
  const auto shown = [](const char* mask, std::int64_t seqlen) {
    const AttentionProblem problem = gpu::planned_problem(problem_with({"", "", mask, {}}, seqlen));
    return shown_blocks(problem, *forward_config(problem, kH200));
  };
  const std::vector<double> prefix = shown("k <= q || k < 300", 1000);  // tiles of 128 queries, blocks of 128 keys
  EXPECT_EQ(prefix, (std::vector<double>{3, 3, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(shown("k < q - 100 && k < 512", 640), (std::vector<double>{1, 2, 3, 4, 4}));
  // Of long sequences blocks are looked at by twos and fours.
  const std::vector<double> all = shown("k >= 0 && k < 2000000", 65536);
  ASSERT_EQ(all.size(), 512U);
  EXPECT_EQ(all.front(), 512.0);
  EXPECT_EQ(all.back(), 512.0);
}

// The joint design knows what is dropped by the sign of P, which has one of its own where a derivative comes with it.
TEST(Texts, DropoutOfNumbersWithSignsGoesByRoles) {
  const auto by_roles = [](const char* score, Normalization normalize) {
    AttentionProblem problem = problem_with({"", score, "", {kSlope}}, 4096, 64);
    problem.pass = Pass::backward;
    problem.normalize = normalize;
    problem.dropout = 0.25F;
    return backward_config(gpu::planned_problem(problem), kH200)->by_roles;
  };
  EXPECT_FALSE(by_roles("score + slope[head]", Normalization::softmax));
  EXPECT_TRUE(by_roles("tanh(score) * slope[head]", Normalization::softmax));
  EXPECT_TRUE(by_roles("score + slope[head]", Normalization::none));
}

TEST(TextMasks, AreBitsUpTo128MiB) {
  const auto planned = [](const char* mask, std::int64_t seqlen, std::int64_t queries) {
    AttentionProblem problem = problem_with({"", "", mask, {kDocument}}, seqlen, 64);
    problem.seqlen_q = queries;
    problem.total_q = problem.batch * queries;
    return gpu::planned_problem(problem);
  };
  for (const std::int64_t seqlen : {128, 4096, 32768}) {  // of the last 128 MiB
    const AttentionProblem bits = planned("document[k] == document[q]", seqlen, seqlen);
    EXPECT_TRUE(bits.expression.mask_is_bits) << seqlen;
    EXPECT_EQ(gpu::text_rule(bits), TextRule()) << seqlen;
    EXPECT_EQ(gpu::score_rule(bits).block_bits, BlockBits::query_bits) << seqlen;
  }
  for (const AttentionProblem& text :
       {planned("document[k] == document[q]", 40'000, 40'000),
        planned("document[k] == document[q] + head", 32768, 32768), planned("document[k] == document[q]", 4096, 64)}) {
    EXPECT_FALSE(text.expression.mask_is_bits);
    EXPECT_TRUE(gpu::text_rule(text).mask);
    EXPECT_EQ(gpu::score_rule(text).block_bits, BlockBits::none);
  }
}

TEST(TextOptions, LeaveOtherTexts) {
  for (const char* mask : {"k <= q || k < 512", "k < q * 2", "k < 100", "k > q"}) {
    const AttentionProblem planned = gpu::planned_problem(problem_with({"", "", mask, {}}));
    EXPECT_TRUE(gpu::has_text_mask(planned)) << mask;
    EXPECT_EQ(planned.causal, CausalMask::none) << mask;
    EXPECT_EQ(planned.modifiers.block_size, 128) << mask;
  }
  AttentionProblem longer = problem_with({"", "", "k <= q", {}});
  longer.seqlen_k = 2 * longer.seqlen_q;
  longer.total_k = longer.batch * longer.seqlen_k;
  EXPECT_EQ(gpu::planned_problem(longer).causal, CausalMask::top_left);
  EXPECT_EQ(gpu::planned_problem(problem_with({"", "30 * tanh(score / 20)", "", {}})).softcap, 0.0F);
}

TEST(Texts, OtherLengthsAreTheSameKernel) {
  const Text text{"", "score + slope[head] * (k - q)", "document[k] == document[q]", {kSlope, kDocument}};
  const auto variant = [&](std::int64_t seqlen) {
    return forward_variant(*forward_config(gpu::planned_problem(problem_with(text, seqlen)), kH200));
  };
  EXPECT_EQ(variant(4096).expression, variant(3000).expression);
  EXPECT_EQ(variant(4096).code, variant(3000).code);
}

/// Options that calls with texts, and those without a softmax, may have: each in the pass that reads it.
const std::vector<std::pair<std::string, void (*)(AttentionProblem&)>> kBeside{
    {"row_invariant", [](AttentionProblem& p) { p.row_invariant = true; }},
    {"gradients", [](AttentionProblem& p) { p.pass = Pass::backward, p.expression.gradients = 1; }},
    {"deterministic", [](AttentionProblem& p) { p.pass = Pass::backward, p.deterministic = true; }},
    {"dropout", [](AttentionProblem& p) { p.pass = Pass::backward, p.dropout = 0.25F; }},
    {"d_bias", [](AttentionProblem& p) { p.pass = Pass::backward, p.modifiers.has_bias = p.wants_d_bias = true; }}};

TEST(Texts, TakeOtherOptions) {
  for (const Normalization normalize : {Normalization::softmax, Normalization::none}) {
    for (const auto& [name, change] : kBeside) {
      AttentionProblem problem = problem_with({"", "sigmoid(score + slope[head])", "k % 3 != 1", {kSlope}});
      problem.normalize = normalize;
      change(problem);
      for (const Status& status :
           {gpu::check_texts(problem), sm90::check_supported(problem), sm80::check_supported(problem)}) {
        EXPECT_TRUE(status.ok()) << name << ": " << status.message();
      }
    }
  }
  AttentionProblem problem = test::problem_of(4096, 128, 128);
  problem.normalize = Normalization::none;
  EXPECT_FALSE(forward_config(problem, kH200)->rule.normalized);
}

TEST(Texts, DeterministicGradientsOfCapturesHaveLimits) {
  AttentionProblem problem = problem_with({"", "score + slope[head]", "", {kSlope}});
  problem.pass = Pass::backward;
  problem.expression.gradients = 1;
  problem.deterministic = true;
  constexpr std::int64_t kMostElements = (std::int64_t{4} << 30U) / 88;
  problem.expression.gradient_elements = kMostElements - 1000;
  EXPECT_TRUE(gpu::check_exact_captures(problem).ok());
  problem.expression.gradient_elements = kMostElements + 1;
  EXPECT_EQ(gpu::check_exact_captures(problem).message(),
            "d_captures have 48806447 elements and are given with deterministic: the gpu engine then has 88 bytes of "
            "workspace for each, and 4294967296 in all at most; the cpu engine takes more");
  problem.deterministic = false;
  EXPECT_TRUE(gpu::check_exact_captures(problem).ok());
  problem.deterministic = true;
  problem.expression.gradient_elements = 1;
  problem.heads_q = problem.heads_kv = 16;
  problem.batch = 1;
  problem.seqlen_q = problem.seqlen_k = 131072;
  EXPECT_TRUE(gpu::check_exact_captures(problem).ok());  // 2^38 pairs, of which a warp sums eight and more
  problem.expression.formula = ScoreFunction::parse("score + slope[q * k]", "", {{kSlope}})->formula();
  EXPECT_EQ(gpu::check_exact_captures(problem).message(),
            "d_captures of 131072 x 131072 pairs of queries and keys in 16 heads are given with deterministic: the gpu "
            "engine sums up to 34359738368 terms; the cpu engine sums more");
}

}  // namespace
}  // namespace strobe::sm90
