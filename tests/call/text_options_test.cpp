// SPDX-License-Identifier: Apache-2.0
// Which options a planned call has in the place of its score's text: a softcap, a bias and ALiBi, by what the text
// says, the captures' shapes and the rest of the call.
#include "call/text_options.h"

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "api/problem.h"
#include "strobe/expression.h"

namespace strobe {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 4, kRows = 30, kColumns = 16;

struct Capture {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::float32;
};

template <class View>
View view_of(const std::vector<std::int64_t>& shape, DType dtype) {
  View view;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0; stride *= shape[axis]) {
    view.shape[axis] = shape[axis];
    view.strides[axis] = stride;
  }
  return view;
}

/// Plans of self-attention with a text, whose tensors have shapes alone.
class Call {
 public:
  Call(const std::string& score, const std::vector<Capture>& captures, const std::string& mask = "")
      : function_(parse(score, mask, captures)) {
    for (const Capture& capture : captures) {
      views.push_back(view_of<ConstTensorView>(capture.shape, capture.dtype));
      gradients.emplace_back();
    }
    if (!captures.empty()) gradients[0] = view_of<TensorView>(captures[0].shape, DType::float32);
  }

  /// As apply(call) leaves it.
  template <class Apply>
  Call with(const Apply& apply) const {
    Call other = *this;
    apply(other);
    return other;
  }

  AttentionProblem forward() const {
    const auto rows = view_of<TensorView>({kBatch, queries, kHeads, kColumns}, dtype);
    const auto keys = view_of<ConstTensorView>({kBatch, kRows, kHeads, kColumns}, dtype);
    ForwardArguments arguments{.q = rows, .k = keys, .v = keys, .o = rows};
    arguments.modifiers = all_modifiers();
    return planned(arguments);
  }

  /// With the gradient of the first capture.
  AttentionProblem backward() const {
    const auto rows = view_of<TensorView>({kBatch, queries, kHeads, kColumns}, dtype);
    const auto keys = view_of<TensorView>({kBatch, kRows, kHeads, kColumns}, dtype);
    const auto lse = view_of<ConstTensorView>({kBatch, kHeads, queries}, DType::float32);
    BackwardArguments arguments{
        .q = rows, .k = keys, .v = keys, .o = rows, .lse = lse, .d_o = rows, .dq = rows, .dk = keys, .dv = keys};
    arguments.modifiers = all_modifiers();
    arguments.d_captures = gradients;
    return planned(arguments);
  }

  DType dtype = DType::float32;
  std::int64_t queries = kRows;
  std::vector<ConstTensorView> views;
  std::vector<TensorView> gradients;
  ScoreModifiers modifiers;
  AttentionOptions options;
  std::function<void(AttentionProblem&)> change = [](AttentionProblem&) {};  // of what a plain call lacks

 private:
  static ScoreFunction parse(const std::string& score, const std::string& mask, const std::vector<Capture>& captures) {
    std::vector<CaptureType> types;
    for (const Capture& each : captures) types.push_back({each.name, each.dtype, static_cast<int>(each.shape.size())});
    return *ScoreFunction::parse(score, mask, types);
  }

  ScoreModifiers all_modifiers() const {
    ScoreModifiers all = modifiers;
    all.function = &function_;
    all.captures = views;
    return all;
  }

  template <class Arguments>
  AttentionProblem planned(const Arguments& arguments) const {
    Result<AttentionProblem> problem = api::make_problem(arguments, options);
    EXPECT_TRUE(problem.ok()) << problem.status().message();
    change(*problem);
    const AttentionProblem planned = with_built_in_options(*problem);
    // What a run looks for in the captures is what the plan has.
    const expression::ScoreTerms terms = captured_options(*problem);
    EXPECT_EQ(terms.bias.given(), planned.modifiers.has_bias && !problem->modifiers.has_bias);
    EXPECT_EQ(terms.slopes.given(), planned.modifiers.has_alibi && !problem->modifiers.has_alibi);
    return planned;
  }

  ScoreFunction function_;
};

/// Whether the score is still a text, of which nothing else is left then.
bool is_text(const AttentionProblem& planned) {
  return planned.expression.given() && !planned.expression.score_is_option;
}

const Capture kBias{"bias", {kHeads, kRows, kRows}};
const Capture kSlope{"slope", {kHeads}};
const std::string kBiasText = "score + bias[head][q][k]";
const std::string kAlibi = "score + slope[head] * (k - q)";

TEST(TextOptions, HaveABiasByEveryOrderOfSharing) {
  struct Case {
    std::string indices;
    std::vector<std::int64_t> shape;
    bool per_batch, per_head;
  };
  for (const Case& each :
       {Case{"[q][k]", {kRows, kRows}, false, false}, Case{"[head][q][k]", {kHeads, kRows, kRows}, false, true},
        Case{"[batch][q][k]", {kBatch, kRows, kRows}, true, false},
        Case{"[batch][head][q][k]", {kBatch, kHeads, kRows, kRows}, true, true},
        Case{"[0][head][q][k]", {1, kHeads, kRows, kRows}, false, true},
        Case{"[0][q][k]", {1, kRows, kRows}, false, false}}) {
    const Call call("score + bias" + each.indices, {{"bias", each.shape}});
    for (const AttentionProblem& planned : {call.forward(), call.backward()}) {
      EXPECT_FALSE(planned.expression.given()) << each.indices;
      EXPECT_TRUE(planned.modifiers.has_bias) << each.indices;
      EXPECT_EQ(planned.modifiers.bias_per_batch, each.per_batch) << each.indices;
      EXPECT_EQ(planned.modifiers.bias_per_head, each.per_head) << each.indices;
    }
    EXPECT_TRUE(call.backward().wants_d_bias);
    EXPECT_FALSE(call.with([](Call& c) { c.gradients = {}; }).backward().wants_d_bias);
  }
}

TEST(TextOptions, HaveTheBiasesThatTheOptionTakes) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    for (const DType of_bias : {DType::float32, DType::float16, DType::bfloat16}) {
      const Call call = Call(kBiasText, {{"bias", kBias.shape, of_bias}}).with([&](Call& c) { c.dtype = dtype; });
      const bool taken = of_bias == DType::float32 || of_bias == dtype;
      EXPECT_EQ(is_text(call.forward()), !taken);
      EXPECT_EQ(call.forward().modifiers.bias_dtype, taken ? of_bias : DType::float32);
    }
  }
  const auto strided = [](Call& c) { c.views[0].strides = {1, kHeads * kRows, kHeads}; };
  EXPECT_TRUE(is_text(Call(kBiasText, {kBias}).with(strided).forward()));
  const auto strided_gradient = [](Call& c) { c.gradients[0].strides = {1, kHeads * kRows, kHeads}; };
  EXPECT_FALSE(is_text(Call(kBiasText, {kBias}).with(strided_gradient).forward()));
  EXPECT_TRUE(is_text(Call(kBiasText, {kBias}).with(strided_gradient).backward()));
}

// What lies outside of a capture reads 0, and elements that no pair reads have a gradient of 0.
TEST(TextOptions, HaveABiasOfAllPairs) {
  for (const auto& shape :
       {std::vector{kHeads - 1, kRows, kRows}, {kHeads, kRows - 1, kRows}, {kHeads, kRows, kRows - 1}}) {
    const Call smaller(kBiasText, {{"bias", shape}});
    EXPECT_TRUE(is_text(smaller.forward()) && is_text(smaller.backward()));
  }
  for (const auto& shape :
       {std::vector{kHeads + 1, kRows, kRows}, {kHeads, kRows + 1, kRows}, {kHeads, kRows, kRows + 1}}) {
    const Call larger(kBiasText, {{"bias", shape}});
    EXPECT_FALSE(is_text(larger.forward()));
    EXPECT_TRUE(is_text(larger.backward()));
    EXPECT_FALSE(is_text(larger.with([](Call& c) { c.gradients = {}; }).backward()));
  }
  EXPECT_TRUE(is_text(Call("score + bias[0][q][k]", {{"bias", {0, kRows, kRows}}}).forward()));
  EXPECT_TRUE(is_text(Call("score + bias[0][q][k]", {{"bias", {2, kRows, kRows}}}).backward()));
}

TEST(TextOptions, LeaveTextsThatReadABiasInAnotherWay) {
  for (const char* const score :
       {"score + bias[head][k][q]", "score - bias[head][q][k]", "score + 2 * bias[head][q][k]",
        "score + bias[head_kv][q][k]", "score + bias[head][q][k + 1]", "score + bias[1][q][k]",
        "score + bias[batch][q][k] + bias[head][q][k]", "score * 0.5 + bias[head][q][k]", "bias[head][q][k] - score",
        "30 * tanh((score + bias[head][q][k]) / 30)", "30 * tanh(score / 20) + bias[head][q][k]",
        "score + bias[head][q][k] + 1.0", "score + score + bias[head][q][k]", "bias[head][q][k]",
        "k > 3 ? score + bias[head][q][k] : score"}) {
    const AttentionProblem planned = Call(score, {{"bias", {40, 40, 40}}}).forward();
    EXPECT_TRUE(is_text(planned)) << score;
    EXPECT_FALSE(planned.modifiers.has_bias || planned.softcap != 0.0F) << score;
  }
  EXPECT_TRUE(is_text(Call("score + bias[head][batch][q][k]", {{"bias", {kHeads, kBatch, kRows, kRows}}}).forward()));
  EXPECT_TRUE(is_text(
      Call(kBiasText, {{"bias", kBias.shape, DType::int32}}).with([](Call& c) { c.gradients = {}; }).forward()));
}

TEST(TextOptions, HaveAlibiWhereverTheDistanceIsTheSame) {
  for (const char* const score :
       {"score + slope[head] * (k - q)", "score + (k - q) * slope[head]", "slope[head] * (k - q) + score",
        "score - slope[head] * (q - k)", "score + -slope[head] * (q - k)", "score - slope[head] * float(q - k)",
        "score - slope[head] * abs(k - q)", "score - abs(float(q - k)) * slope[head]",
        "score + slope[head] * (k - (q + k_len - q_len))", "score - slope[head] * abs(q + k_len - k - q_len)"}) {
    const Call call = Call(score, {kSlope}, "k <= q").with([](Call& c) { c.gradients = {}; });
    for (const AttentionProblem& planned : {call.forward(), call.backward()}) {
      EXPECT_FALSE(planned.expression.given()) << score;
      EXPECT_TRUE(planned.modifiers.has_alibi) << score;
      EXPECT_FALSE(planned.modifiers.alibi_per_batch) << score;
    }
  }
  const Call per_batch("score + slope[batch][head] * (k - q)", {{"slope", {kBatch, kHeads}}}, "k <= q");
  EXPECT_TRUE(per_batch.forward().modifiers.alibi_per_batch);
  EXPECT_FALSE(is_text(Call(kAlibi, {{"slope", {kHeads + 3}}}, "k <= q").forward()));
  EXPECT_FALSE(is_text(Call("score - slope[head] * abs(k - q)", {kSlope}).forward()));
  for (const char* const mask : {"k <= q && q - k < 8", "k <= q && k % 3 != 1", "k <= q && slope[k] < 1.0"}) {
    const AttentionProblem planned = Call(kAlibi, {kSlope}, mask).forward();
    EXPECT_TRUE(planned.modifiers.has_alibi) << mask;
    EXPECT_EQ(planned.expression.given(), std::string(mask).find("&& q - k < 8") == std::string::npos) << mask;
  }
  const auto causal = [](Call& c) { c.options.causal = CausalMask::bottom_right; };
  EXPECT_FALSE(is_text(Call(kAlibi, {kSlope}).with(causal).forward()));
  EXPECT_FALSE(is_text(Call(kAlibi, {kSlope}).with([](Call& c) { c.options.window = {5, 0}; }).forward()));
}

TEST(TextOptions, LeaveAlibiOfOtherDistances) {
  const auto forward = [](const std::string& score, const std::string& mask, std::int64_t queries = kRows) {
    return Call(score, {kSlope}, mask).with([&](Call& c) { c.queries = queries; }).forward();
  };
  const std::string centered = "score + slope[head] * (k - (q + k_len - q_len))";
  for (const char* const mask : {"", "k <= q + 1", "k <= q || k < 4", "q <= k", "(q - k) % 2 == 0"}) {
    EXPECT_TRUE(is_text(forward(kAlibi, mask))) << mask;
  }
  for (const char* const score :
       {"score - slope[head] * (k - q)", "score + slope[head] * abs(k - q)", "score + slope[head] * (k - q - 1)",
        "score + slope[head] * k", "score + slope[q] * (k - q)", "score + slope[head] * (k - q) * 0.5",
        "score + slope[head] * (k + q)", "score + slope[head] * (2 * k - 2 * q)",
        "score + slope[head] * (k - q) + slope[head] * (k - q)", "score + slope[head] * (k - q + k_len)"}) {
    EXPECT_TRUE(is_text(forward(score, "k <= q"))) << score;
  }
  // Of unequal lengths a query has another key beside it than at its center.
  EXPECT_FALSE(is_text(forward(kAlibi, "k <= q", 7)));
  EXPECT_EQ(forward(kAlibi, "k <= q", 7).causal, CausalMask::top_left);
  EXPECT_TRUE(is_text(forward(kAlibi, "k <= q + k_len - q_len", 7)));
  EXPECT_TRUE(is_text(forward("score - slope[head] * abs(k - q)", "", 7)));
  EXPECT_FALSE(is_text(forward(centered, "k <= q + k_len - q_len", 7)));
  EXPECT_TRUE(is_text(forward(centered, "k <= q", 7)));
  EXPECT_FALSE(is_text(forward("score - slope[head] * abs(k - (q + k_len - q_len))", "", 7)));
}

TEST(TextOptions, LeaveMasksThatMoveTheCenterOfSlopes) {
  const auto slopes = [](Call& c) { c.modifiers.alibi_slopes = view_of<ConstTensorView>({kHeads}, DType::float32); };
  const auto forward = [](const Call& call, std::int64_t queries) {
    return with_implied_options(call.with([&](Call& c) { c.queries = queries; }).forward());
  };
  for (const char* const mask : {"k <= q", "k <= q && q - k < 9", "k <= q && k % 2 == 0"}) {
    const Call plain("", {}, mask);
    const Call with_slopes = plain.with(slopes);
    EXPECT_EQ(forward(plain, 7).causal, CausalMask::top_left) << mask;
    EXPECT_EQ(forward(with_slopes, 7).causal, CausalMask::none) << mask;
    EXPECT_TRUE(forward(with_slopes, 7).expression.given()) << mask;
    EXPECT_EQ(forward(with_slopes, kRows).causal, CausalMask::bottom_right) << mask;
    EXPECT_EQ(forward(Call(kBiasText, {{"bias", {kHeads, 7, kRows}}}, mask).with(slopes), 7).causal, CausalMask::none);
    EXPECT_EQ(forward(Call(kAlibi, {kSlope}, mask), 7).causal, CausalMask::top_left) << mask;
  }
}

TEST(TextOptions, LeaveSlopesThatTheOptionLacks) {
  EXPECT_TRUE(is_text(Call(kAlibi, {{"slope", {kHeads - 1}}}, "k <= q").forward()));
  EXPECT_TRUE(is_text(Call(kAlibi, {{"slope", {kHeads}, DType::float16}}, "k <= q").forward()));
  EXPECT_TRUE(is_text(Call(kAlibi, {kSlope}, "k <= q").with([](Call& c) { c.views[0].strides[0] = 2; }).forward()));
  EXPECT_TRUE(is_text(Call(kAlibi, {kSlope}, "k <= q").backward()));  // whose gradient is wanted
}

TEST(TextOptions, TakeSums) {
  const Capture slope{"slope", {kHeads}};
  for (const char* const score : {"30 * tanh(score / 30) + bias[head][q][k] + slope[head] * (k - q)",
                                  "bias[head][q][k] + (slope[head] * (k - q) + 30 * tanh(score / 30))",
                                  "30 * tanh(score / 30) - (slope[head] * (q - k) - bias[head][q][k])"}) {
    for (const bool is_backward : {false, true}) {
      const Call call(score, {kBias, slope}, "k <= q");
      const AttentionProblem planned = is_backward ? call.backward() : call.forward();
      EXPECT_FALSE(planned.expression.given()) << score;
      EXPECT_TRUE(planned.modifiers.has_bias && planned.modifiers.has_alibi) << score;
      EXPECT_EQ(planned.softcap, 30.0F) << score;
      EXPECT_EQ(planned.wants_d_bias, is_backward);
    }
    // One that stays a text leaves the others one.
    const AttentionProblem planned = Call(score, {kBias, slope}).forward();
    EXPECT_TRUE(is_text(planned)) << score;
    EXPECT_FALSE(planned.modifiers.has_bias || planned.modifiers.has_alibi || planned.softcap != 0.0F) << score;
  }
}

TEST(TextOptions, AreNotGivenTwice) {
  const auto bias = [](Call& c) { c.modifiers.bias = view_of<ConstTensorView>({1, 1, kRows, kRows}, DType::float32); };
  const auto slopes = [](Call& c) { c.modifiers.alibi_slopes = view_of<ConstTensorView>({kHeads}, DType::float32); };
  const auto softcap = [](Call& c) { c.options.softcap = 20.0F; };
  const Call of_bias(kBiasText, {kBias});
  const Call of_slopes(kAlibi, {kSlope}, "k <= q");
  const Call of_both("30 * tanh(score / 30) + bias[head][q][k]", {kBias});
  EXPECT_TRUE(is_text(of_bias.with(bias).forward()));
  EXPECT_FALSE(is_text(of_bias.with(slopes).forward()));
  EXPECT_FALSE(is_text(of_bias.with(softcap).forward()));
  EXPECT_TRUE(is_text(of_slopes.with(slopes).forward()));
  EXPECT_FALSE(is_text(of_slopes.with(bias).forward()));
  for (const auto& change : std::initializer_list<std::function<void(Call&)>>{bias, slopes, softcap}) {
    EXPECT_TRUE(is_text(of_both.with(change).forward()));
  }
  EXPECT_FALSE(is_text(of_both.forward()));
}

TEST(TextOptions, LeaveTextsOfCallsThatTheOptionsDoNotServe) {
  using Change = void (*)(AttentionProblem&);
  const std::string centered = "score + slope[head] * (k - (q + k_len - q_len))";
  const Call of_bias(kBiasText, {kBias});
  const Call of_slopes(centered, {kSlope}, "k <= q + k_len - q_len");
  const auto stays = [](const Call& call, Change change) {
    return is_text(call.with([&](Call& c) { c.change = change; }).forward());
  };
  for (const Change change : std::initializer_list<Change>{
           [](AttentionProblem& p) { p.has_offsets = true; }, [](AttentionProblem& p) { p.has_tree_mask = true; },
           [](AttentionProblem& p) { p.eight_bit.q_rows = 1; }, [](AttentionProblem& p) { p.row_invariant = true; }}) {
    EXPECT_TRUE(stays(of_bias, change));
    EXPECT_TRUE(stays(of_slopes, change));
  }
  for (const Change change : std::initializer_list<Change>{
           [](AttentionProblem& p) { p.packed_q = p.packed_k = true; }, [](AttentionProblem& p) { p.page_size = 16; },
           [](AttentionProblem& p) { p.has_leftpad_k = true; }, [](AttentionProblem& p) { p.stored.k_rows = 1; },
           [](AttentionProblem& p) { p.has_cache_batch_idx = true; }, [](AttentionProblem& p) { p.has_qv = true; },
           [](AttentionProblem& p) { p.dropout = 0.5F; }}) {
    EXPECT_TRUE(stays(of_bias, change));
    EXPECT_FALSE(stays(of_slopes, change));
  }
  for (const Change change : std::initializer_list<Change>{
           [](AttentionProblem& p) { p.has_seqused_k = true; }, [](AttentionProblem& p) { p.deterministic = true; },
           [](AttentionProblem& p) { p.normalize = Normalization::none; }}) {
    EXPECT_FALSE(stays(of_bias, change));
    EXPECT_FALSE(stays(of_slopes, change));
  }
}

/// By which a mask that was made a bias still hides its keys.
TEST(ScoreFunction, SaysWhetherHiddenScoresStayHidden) {
  const auto keeps = [](std::string_view score) { return ScoreFunction::parse(score, {}, {})->keeps_hidden(); };
  for (const std::string_view score : {"score", "score + 0.1 * (k - q)", "2 * (score - 3)", "score / 4"}) {
    EXPECT_TRUE(keeps(score)) << score;
  }
  for (const std::string_view score : {"tanh(score)", "-score", "score * score", "0 * score", "score * (k - q)"}) {
    EXPECT_FALSE(keeps(score)) << score;
  }
  EXPECT_TRUE(ScoreFunction::parse({}, "k <= q", {})->keeps_hidden());
}

}  // namespace
}  // namespace strobe
