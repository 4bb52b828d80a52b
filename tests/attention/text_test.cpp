// SPDX-License-Identifier: Apache-2.0
// Score and mask expressions: each against the reference, and those that say what an option says beside it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "every_dtype.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

AttentionCase text_case(std::int64_t seqlen, std::int64_t head_dim) {
  AttentionCase attention = square(seqlen, head_dim);
  attention.heads_q = 4;
  return attention;
}

TextShape shape_of(const AttentionCase& attention) {
  return {attention.batch, attention.heads_q, attention.heads_kv, attention.q.rows, attention.k.rows};
}

class Text : public EveryDType {};

TEST_P(Text, MatchesTheReference) {
  const AttentionCase base = text_case(70, 24);
  for (TextCase& text : all_texts(shape_of(base))) {
    for (CapturedTensor& capture : text.captures) capture.wants_gradient = capture.largest == 0;
    expect_matches(base, [&](AttentionCase& attention) { attention.text = text; });
  }
}

TEST_P(Text, MatchesWithEveryOtherOption) {
  for (TextCase& text : all_texts(shape_of(text_case(90, 16)))) {
    for (CapturedTensor& capture : text.captures) capture.wants_gradient = capture.largest == 0;
    expect_matches(text_case(90, 16), [&](AttentionCase& attention) {
      attention.text = text;
      attention.options = {.causal = CausalMask::bottom_right, .window = {40, 0}, .softcap = 20.0F, .dropout = 0.25F};
      attention.alibi = Alibi::per_head;
      attention.bias = BiasCase{};
      attention.has_sink = true;
      attention.blocks = BlockCase{.size = 64, .visible = 0.8};
      attention.k.seqused = {90, 33};
    });
  }
}

// Few queries have kernels of their own.
TEST_P(Text, AFewQueriesMatchTheReference) {
  AttentionCase base = text_case(300, 24);
  base.q.rows = 3;
  base.k.seqused = {300, 130};
  for (TextCase& text : all_texts(shape_of(base))) {
    for (CapturedTensor& capture : text.captures) capture.wants_gradient = capture.largest == 0;
    expect_matches(base, [&](AttentionCase& attention) { attention.text = text; });
    expect_matches(base, [&](AttentionCase& attention) {
      attention.text = text;
      attention.options = {.causal = CausalMask::bottom_right, .window = {90, 0}, .softcap = 20.0F, .dropout = 0.25F};
      attention.alibi = Alibi::per_head;
      attention.bias = BiasCase{};
      attention.has_sink = true;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Text, Text, every_dtype(), dtype_name);

// Fills a capture with what an option holds and expects nearly the results of that option.
void expect_like_the_option(const TextCase& text, const std::function<void(AttentionCase&)>& option,
                            const std::function<double(std::int64_t)>& element,
                            const std::function<void(CaseTensors&)>& fill) {
  AttentionCase attention = text_case(100, 32);
  attention.seed = 3;
  AttentionCase with_option = attention;
  attention.text = text;
  option(with_option);
  CaseTensors one(attention);
  CaseTensors other(with_option);
  for (GuardedTensor& capture : one.captures) {
    for (std::int64_t i = 0; i < capture.size(); ++i) capture.set(i, element(i));
  }
  fill(other);
  for (GuardedTensor* tensors : {&one.q, &one.k, &one.v, &one.d_o, &one.d_lse}) tensors->poison();
  one.q.copy(other.q.view());
  one.k.copy(other.k.view());
  one.v.copy(other.v.view());
  one.d_o.copy(other.d_o.view());
  one.d_lse.copy(other.d_lse.view());
  for (const auto& [tensors, options] : {std::pair(&one, attention.options), std::pair(&other, with_option.options)}) {
    ASSERT_TRUE(forward(tensors->forward_arguments(), options).ok());
    ASSERT_TRUE(backward(tensors->backward_arguments(), options).ok());
  }
  for (const auto& [mine, theirs] :
       {std::pair(&one.o, &other.o), std::pair(&one.lse, &other.lse), std::pair(&one.dq, &other.dq),
        std::pair(&one.dk, &other.dk), std::pair(&one.dv, &other.dv)}) {
    for (std::int64_t i = 0; i < mine->size(); ++i) ASSERT_NEAR(mine->get(i), theirs->get(i), 2e-4) << i;
  }
}

void nothing(CaseTensors&) {}
double none(std::int64_t) { return 0.0; }

TEST(TextAndOption, SoftcapIsATanh) {
  expect_like_the_option(
      {"15 * tanh(score / 15)", "", {}}, [](AttentionCase& a) { a.options.softcap = 15.0F; }, none, nothing);
}

TEST(TextAndOption, AlibiIsADistance) {
  const auto slope = [](std::int64_t head) { return std::exp2(-static_cast<double>(head)); };
  expect_like_the_option(
      {"score - slope[head] * abs(k - q)", "", {{{"slope", DType::float32, 1}, {4}}}},
      [](AttentionCase& a) { a.alibi = Alibi::per_head; }, slope,
      [&](CaseTensors& tensors) {
        for (std::int64_t i = 0; i < 4; ++i) tensors.alibi_slopes.set(i, slope(i));
      });
}

TEST(TextAndOption, CausalMasksAndWindowsAreComparisons) {
  expect_like_the_option(
      {"", "k <= q", {}}, [](AttentionCase& a) { a.options.causal = CausalMask::bottom_right; }, none, nothing);
  expect_like_the_option(
      {"", "abs(q - k) <= 20", {}}, [](AttentionCase& a) { a.options.window = {20, 20}; }, none, nothing);
  expect_like_the_option({"", "q / 32 == k / 32", {}}, [](AttentionCase& a) { a.options.chunk = 32; }, none, nothing);
  // Of reals, too, a multiple of the divisor begins the next.
  expect_like_the_option(
      {"", "floor(float(q) / 41.0) == floor(float(k) / 41.0)", {}}, [](AttentionCase& a) { a.options.chunk = 41; },
      none, nothing);
}

// A text's part that an option could say stands beside the whole.
TEST_P(Text, WithACausalPartMatchesTheReference) {
  const CapturedTensor document{{"document", DType::int32, 2}, {2, 90}, 2};
  for (const char* const mask :
       {"k <= q + k_len - q_len && document[batch][k] == document[batch][q]", "k <= q && q - k < 30 && k % 3 != 1",
        "document[batch][k] <= 1 && q < k", "k <= q && (q - k < 16 || k < 4)"}) {
    for (const std::int64_t rows : {90, 70, 4}) {
      expect_matches(text_case(90, 16), [&](AttentionCase& attention) {
        attention.q.rows = rows;
        attention.text = {"", mask, {document}};
        if (std::string(mask).find("document") == std::string::npos) attention.text->captures.clear();
      });
    }
  }
}

std::string explained(AttentionCase attention, const std::function<void(AttentionCase&)>& change) {
  change(attention);
  const CaseTensors tensors(attention);
  const Result<Plan> forward = make_plan(tensors.forward_arguments(), attention.options);
  const Result<Plan> backward = make_plan(tensors.backward_arguments(), attention.options);
  return forward.ok() && backward.ok() ? explained_without_texts(*forward) + explained_without_texts(*backward)
                                       : "no plan";
}

// Which kernels there are depends on the machine: those of a text are the option's.
TEST(TextAndOption, HaveTheSamePlans) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    for (const std::int64_t rows : {1, 200}) {
      AttentionCase attention = text_case(200, 64);
      attention.dtype = dtype;
      attention.q.rows = rows;
      const std::string plain = explained(attention, [](AttentionCase&) {});
      const std::string causal =
          explained(attention, [](AttentionCase& a) { a.options.causal = CausalMask::bottom_right; });
      EXPECT_EQ(explained(attention, [](AttentionCase& a) { a.text = {"", "k <= q + k_len - q_len", {}}; }), causal);
      EXPECT_EQ(explained(attention, [](AttentionCase& a) { a.text = {"30 * tanh(score / 30)", "", {}}; }), plain);
      // Of what no option says the kernels are the same, too: they take memory for it.
      const auto without_memory = [](const std::string& text) { return text.substr(0, text.find("workspace")); };
      for (const TextCase& text : {TextCase{"score + sin(score)", "", {}}, TextCase{"", "(q - k) % 3 == 0", {}}}) {
        EXPECT_EQ(without_memory(explained(attention, [&](AttentionCase& a) { a.text = text; })),
                  without_memory(plain));
      }
    }
  }
}

TEST(Text, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const char* const score : {"score + slope[head][q]", "score + slope[(k - q) % 3 + 2][1]"}) {
    AttentionCase attention = text_case(400, 16);
    attention.text = {score, "", {{{"slope", DType::float32, 2}, {5, 400}, 0, true}}};
    CaseTensors tensors(attention);
    std::vector<std::vector<std::byte>> expected;
    for (const int threads : {1, 2, 3, 7}) {
      ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options, {.threads = threads}).ok());
      ASSERT_TRUE(backward(tensors.backward_arguments(), attention.options, {.threads = threads}).ok());
      std::vector<std::vector<std::byte>> bytes;
      for (const GuardedTensor* output : tensors.backward_outputs()) bytes.push_back(output->element_bytes());
      if (expected.empty()) expected = bytes;
      EXPECT_EQ(bytes, expected) << score << " on " << threads << " threads";
    }
  }
}

// Of the first query, whatever angles the others have.
TEST(Text, SinesOfARowDoNotDependOnOtherRows) {
  for (const char* const score : {"sin(score * factor[q])", "cos(score * factor[q])"}) {
    AttentionCase attention = text_case(40, 16);
    attention.options.row_invariant = true;
    attention.text = {score, "", {{{"factor", DType::float32, 1}, {40}}}};
    CaseTensors tensors(attention);
    std::vector<std::vector<double>> first_rows;
    for (const double of_others : {2.0, 1e6}) {
      for (std::int64_t i = 0; i < 40; ++i) tensors.captures[0].set(i, i == 0 ? 1.5 : of_others);
      ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
      std::vector<double>& row = first_rows.emplace_back();
      for (std::int64_t i = 0; i < attention.heads_q * attention.head_dim_v; ++i) row.push_back(tensors.o.get(i));
    }
    EXPECT_EQ(first_rows[0], first_rows[1]) << score;
  }
}

TEST(Text, TakesScoresWhoseLseHasLostTheirSum) {
  for (const char* const mask : {"", "k % 3 != 1"}) {
    AttentionCase attention = text_case(60, 16);
    attention.text = {"score + 5000 * t[head]", mask, {{{"t", DType::float32, 1}, {4}, 0, true}}};
    attention.seed = 9;
    expect_case_matches_reference(attention);
  }
}

TEST(Text, PlansAreSharedByEqualCallsWhateverTheCapturesHold) {
  AttentionCase attention = text_case(64, 16);
  attention.text = {"score * t[head]", "", {{{"t", DType::float32, 1}, {4}}}};
  CaseTensors tensors(attention);
  const Result<Plan> plan = make_plan(tensors.forward_arguments(), attention.options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_TRUE(plan->run(tensors.forward_arguments()).ok());
  tensors.captures[0].set(0, 3.0);
  ASSERT_TRUE(plan->run(tensors.forward_arguments()).ok());
  expect_forward_matches(tensors, attention);
}

}  // namespace
}  // namespace strobe::test
