// SPDX-License-Identifier: Apache-2.0
// Texts that say what a bias, ALiBi and softcap say: with the bits of these options in both passes, and texts that
// nearly do, against the reference.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "every_dtype.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 4;

CapturedTensor bias_of(const std::vector<std::int64_t>& shape, DType dtype = DType::float32, bool gradient = true) {
  return {{"bias", dtype, static_cast<int>(shape.size())}, shape, 0, gradient};
}

CapturedTensor slopes_of(const std::vector<std::int64_t>& shape, bool gradient = false) {
  return {{"slope", DType::float32, static_cast<int>(shape.size())}, shape, 0, gradient};
}

AttentionCase four_heads(std::int64_t queries, std::int64_t keys) {
  AttentionCase attention{.batch = kBatch, .heads_q = kHeads, .heads_kv = 2, .head_dim = 24, .head_dim_v = 24};
  attention.q.rows = queries;
  attention.k.rows = keys;
  attention.wants_max_logits = true;
  return attention;
}

// Both passes of a call with a text and of one with options, with the same numbers in both.
class TextAndOptions {
 public:
  TextAndOptions(const AttentionCase& with_text, const AttentionCase& with_options)
      : text_case_(with_text), option_case_(with_options), text_(with_text), option_(with_options) {
    for (const auto& [from, to] : {std::pair(&text_.q, &option_.q),
                                   {&text_.k, &option_.k},
                                   {&text_.v, &option_.v},
                                   {&text_.d_o, &option_.d_o},
                                   {&text_.d_lse, &option_.d_lse}}) {
      from->poison();
      from->copy(to->view());
    }
    for (std::size_t i = 0; i < text_.captures.size(); ++i) {
      GuardedTensor& capture = text_.captures[i];
      const GuardedTensor& option = option_of(i);
      for (std::int64_t index = 0; index < capture.size(); ++index) capture.set(index, option.get(index));
    }
  }

  void expect_the_same_bits() {
    for (const auto& [tensors, options] :
         {std::pair(&text_, text_case_.options), std::pair(&option_, option_case_.options)}) {
      ASSERT_TRUE(forward(tensors->forward_arguments(), options).ok());
      ASSERT_TRUE(backward(tensors->backward_arguments(), options).ok());
    }
    for (const auto& [mine, theirs] : {std::pair(&text_.o, &option_.o),
                                       {&text_.lse, &option_.lse},
                                       {&text_.max_logits, &option_.max_logits},
                                       {&text_.dq, &option_.dq},
                                       {&text_.dk, &option_.dk},
                                       {&text_.dv, &option_.dv}}) {
      EXPECT_EQ(mine->element_bytes(), theirs->element_bytes());
    }
    for (std::size_t i = 0; i < text_.captures.size(); ++i) {
      if (!text_case_.text->captures[i].wants_gradient) continue;
      EXPECT_EQ(text_.d_captures[i].element_bytes(), option_.d_bias.element_bytes());
    }
  }

  void expect_the_same_plans() const {
    EXPECT_EQ(explained_without_texts(*make_plan(text_.forward_arguments(), text_case_.options)),
              make_plan(option_.forward_arguments(), option_case_.options)->explain());
    EXPECT_EQ(explained_without_texts(*make_plan(text_.backward_arguments(), text_case_.options)),
              make_plan(option_.backward_arguments(), option_case_.options)->explain());
  }

 private:
  const GuardedTensor& option_of(std::size_t capture) const {
    return text_case_.text->captures[capture].type.name == "bias" ? option_.bias : option_.alibi_slopes;
  }

  AttentionCase text_case_, option_case_;
  CaseTensors text_, option_;
};

class TextOptions : public EveryDType {
 protected:
  // A text and, by `option`, what says the same.
  void expect_the_option(AttentionCase attention, const TextCase& text,
                         const std::function<void(AttentionCase&)>& option) const {
    attention.dtype = GetParam();
    attention.seed = 11;
    AttentionCase with_option = attention;
    attention.text = text;
    option(with_option);
    SCOPED_TRACE(describe(attention));
    TextAndOptions both(attention, with_option);
    both.expect_the_same_bits();
    both.expect_the_same_plans();
    expect_case_matches_reference(attention);
  }

  static std::function<void(AttentionCase&)> bias(Sharing sharing, DType dtype = DType::float32) {
    return [=](AttentionCase& attention) { attention.bias = {.dtype = dtype, .sharing = sharing}; };
  }
};

INSTANTIATE_TEST_SUITE_P(, TextOptions, every_dtype(), dtype_name);

TEST_P(TextOptions, ABias) {
  for (const std::int64_t queries : {70, 3}) {
    const AttentionCase attention = four_heads(queries, 90);
    expect_the_option(attention, {"score + bias[q][k]", "", {bias_of({queries, 90})}}, bias({}));
    expect_the_option(attention, {"score + bias[head][q][k]", "", {bias_of({kHeads, queries, 90})}},
                      bias({.per_head = true}));
    expect_the_option(attention, {"bias[batch][q][k] + score", "", {bias_of({kBatch, queries, 90})}},
                      bias({.per_batch = true}));
    expect_the_option(attention,
                      {"score + bias[batch][head][q][k]", "", {bias_of({kBatch, kHeads, queries, 90}, GetParam())}},
                      bias({.per_batch = true, .per_head = true}, GetParam()));
    expect_the_option(attention, {"score + bias[0][head][q][k]", "", {bias_of({1, kHeads, queries, 90})}},
                      bias({.per_head = true}));
  }
}

TEST_P(TextOptions, ABiasBesideOptions) {
  AttentionCase attention = four_heads(70, 90);
  attention.options = {.causal = CausalMask::bottom_right, .window = {40, 0}, .softcap = 20.0F};
  attention.options.deterministic = true;
  attention.has_sink = true;
  attention.alibi = Alibi::per_head;
  attention.k.seqused = {90, 33};
  expect_the_option(attention, {"score + bias[head][q][k]", "", {bias_of({kHeads, 70, 90})}}, bias({.per_head = true}));
}

TEST_P(TextOptions, Alibi) {
  const auto alibi = [](AttentionCase& attention) {
    attention.options.causal = CausalMask::bottom_right;
    attention.alibi = Alibi::per_head;
  };
  expect_the_option(four_heads(70, 70), {"score + slope[head] * (k - q)", "k <= q", {slopes_of({kHeads})}}, alibi);
  for (const std::int64_t queries : {70, 3}) {
    expect_the_option(
        four_heads(queries, 90),
        {"score - slope[head] * (q + k_len - q_len - k)", "k <= q + k_len - q_len", {slopes_of({kHeads})}}, alibi);
  }
  expect_the_option(four_heads(70, 70), {"score - slope[batch][head] * abs(q - k)", "", {slopes_of({kBatch, kHeads})}},
                    [](AttentionCase& attention) { attention.alibi = Alibi::per_batch_and_head; });
}

TEST_P(TextOptions, Sums) {
  expect_the_option(four_heads(70, 70),
                    {"5 * tanh(score / 5) + (bias[head][q][k] - slope[head] * (q - k))",
                     "k <= q && q - k < 30",
                     {bias_of({kHeads, 70, 70}), slopes_of({kHeads})}},
                    [](AttentionCase& attention) {
                      attention.options = {.causal = CausalMask::bottom_right, .window = {29, -1}, .softcap = 5.0F};
                      attention.alibi = Alibi::per_head;
                      attention.bias = {.sharing = {.per_head = true}};
                    });
}

// Packed sequences have no bias, but ALiBi.
TEST_P(TextOptions, AlibiOfPackedSequences) {
  AttentionCase attention = four_heads(100, 120);
  attention.q.cu_seqlens = {0, 60, 100};
  attention.k.cu_seqlens = {0, 70, 120};
  expect_the_option(
      attention, {"score + slope[head] * (k - (q + k_len - q_len))", "k <= q + k_len - q_len", {slopes_of({kHeads})}},
      [](AttentionCase& each) {
        each.options.causal = CausalMask::bottom_right;
        each.alibi = Alibi::per_head;
      });
}

// Beside a mask that is a text.
TEST_P(TextOptions, BesideAMaskMatchTheReference) {
  const CapturedTensor document{{"document", DType::int32, 2}, {kBatch, 70}, 2};
  const std::string mask = "k <= q && document[batch][k] == document[batch][q]";
  expect_matches(four_heads(70, 70), [&](AttentionCase& attention) {
    attention.text = {"score + bias[head][q][k]", mask, {bias_of({kHeads, 70, 70}), document}};
  });
  expect_matches(four_heads(70, 70), [&](AttentionCase& attention) {
    attention.text = {"score + slope[head] * (k - q)", mask, {slopes_of({kHeads}), document}};
  });
  // The one bias is read by both texts.
  expect_matches(four_heads(70, 70), [&](AttentionCase& attention) {
    attention.text = {"score + bias[q][k]", "bias[q][k] > -0.5 || q == k", {bias_of({70, 70})}};
  });
}

// What no option says.
TEST_P(TextOptions, OfOtherTextsMatchTheReference) {
  const std::vector<TextCase> texts{
      {"score + bias[head][q][k]", "", {bias_of({kHeads, 75, 80})}},  // larger
      {"score + bias[head][q][k]", "", {bias_of({kHeads, 75, 80}, DType::float32, false)}},
      {"score + bias[head][q][k]", "", {bias_of({3, 60, 66})}},  // smaller
      {"score + bias[0][q][k]", "", {bias_of({2, 70, 70})}},
      {"score + bias[head][batch][q][k]", "", {bias_of({kHeads, kBatch, 70, 70})}},
      {"score + bias[k][q]", "", {bias_of({70, 70})}},
      {"score + bias[q][k] + bias[k][q]", "", {bias_of({70, 70})}},
      {"score - bias[q][k]", "", {bias_of({70, 70})}},
      {"3 * tanh((score + bias[q][k]) / 3)", "", {bias_of({70, 70})}},
      {"score + bias[q][k]", "", {bias_of({70, 70}, DType::float16)}},
      {"score + slope[head] * (k - q)", "", {slopes_of({kHeads})}},
      {"score + slope[head] * (k - q)", "k <= q + 3", {slopes_of({kHeads})}},
      {"score + slope[head] * (k - q)", "k <= q", {slopes_of({kHeads}, true)}},  // whose gradient is wanted
      {"score + slope[head] * (k - q)", "k <= q", {slopes_of({3})}},
      {"score - slope[head] * (k - q)", "k <= q", {slopes_of({kHeads})}},
  };
  for (const TextCase& text : texts) {
    expect_matches(four_heads(70, 70), [&](AttentionCase& attention) { attention.text = text; });
    expect_matches(four_heads(40, 66), [&](AttentionCase& attention) { attention.text = text; });
  }
}

TEST_P(TextOptions, OfOtherCallsMatchTheReference) {
  const TextCase with_bias{"score + bias[head][q][k]", "", {bias_of({kHeads, 70, 90})}};
  const TextCase with_slopes{
      "score + slope[head] * (k - (q + k_len - q_len))", "k <= q + k_len - q_len", {slopes_of({kHeads})}};
  for (const TextCase& text : {with_bias, with_slopes}) {
    const auto expect = [&](const std::function<void(AttentionCase&)>& change) {
      expect_matches(four_heads(70, 90), [&](AttentionCase& attention) {
        attention.text = text;
        change(attention);
      });
    };
    expect([](AttentionCase& a) { a.bias = BiasCase{}; });
    expect([](AttentionCase& a) { a.alibi = Alibi::per_head; });
    expect([](AttentionCase& a) { a.options.softcap = 4.0F; });
    expect([](AttentionCase& a) { a.options.dropout = 0.3F; });
    expect([](AttentionCase& a) { a.options.row_invariant = true; });
    expect([](AttentionCase& a) { a.q.offsets = {3, 30}; });
    expect([](AttentionCase& a) { a.q.seqused = {70, 20}, a.k.seqused = {90, 33}; });
    expect([](AttentionCase& a) { a.q.cu_seqlens = {0, 30, 70}, a.k.cu_seqlens = {0, 40, 90}; });
    expect([](AttentionCase& a) {
      a.options.normalize = Normalization::none;
      a.wants_lse = a.has_d_lse = a.wants_max_logits = false;
    });
  }
}

// The slopes of a call count distances from the center, wherever its text's mask begins.
TEST_P(TextOptions, OfMasksBesideSlopesMatchTheReference) {
  const TextCase with_bias{"score + bias[head][q][k]", "k <= q", {bias_of({kHeads, 70, 40})}};
  for (const TextCase& text : {TextCase{"", "k <= q", {}}, TextCase{"", "k <= q && q - k < 20", {}},
                               TextCase{"", "k <= q && k % 2 == 0", {}}, with_bias}) {
    const auto expect = [&](const std::function<void(AttentionCase&)>& change) {
      expect_matches(four_heads(70, 40), [&](AttentionCase& attention) {
        attention.text = text;
        attention.alibi = Alibi::per_head;
        change(attention);
      });
    };
    expect([](AttentionCase&) {});
    expect([](AttentionCase& a) { a.alibi = Alibi::per_batch_and_head; });
    expect([](AttentionCase& a) { a.q.seqused = {70, 20}, a.k.seqused = {40, 33}; });
    expect([](AttentionCase& a) { a.q.cu_seqlens = {0, 30, 70}, a.k.cu_seqlens = {0, 15, 40}; });
  }
}

// Calls whose captures alone differ follow one another on a thread, which keeps their plans.
TEST(TextOptionsPlans, AreNotThoseOfOtherCaptures) {
  for (const std::int64_t columns : {90, 60, 90, 100}) {
    AttentionCase attention = four_heads(70, 90);
    attention.text = {"score + bias[q][k]", "", {bias_of({70, columns})}};
    expect_case_matches_reference(attention);
  }
}

TEST(TextOptionsPlans, OfTextsRunWithCapturesThatFit) {
  AttentionCase attention = four_heads(70, 90);
  attention.text = {"score + bias[q][k]", "", {bias_of({70, 90})}};
  CaseTensors fitting(attention);
  attention.text->captures = {bias_of({70, 60})};
  const CaseTensors smaller(attention);
  const ForwardArguments arguments = fitting.forward_arguments();
  ForwardArguments of_text = arguments;
  of_text.modifiers.captures = smaller.forward_arguments().modifiers.captures;
  const Result<Plan> plan = make_plan(of_text, attention.options);
  ASSERT_TRUE(plan->run(of_text).ok());
  ASSERT_TRUE(plan->run(arguments).ok());
  expect_forward_matches(fitting, attention);
  EXPECT_EQ(make_plan(arguments, attention.options)->run(of_text).message(),
            "the plan was made for another pass, other shapes or dtypes: make a new plan");
}

}  // namespace
}  // namespace strobe::test
