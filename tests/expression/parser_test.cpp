// SPDX-License-Identifier: Apache-2.0
// What the language takes, and what its errors say.
#include "expression/parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>
#include "random_text.h"

namespace strobe::test {
namespace {

using expression::Formula;
using testing::HasSubstr;

std::string error_of(const std::string& score, const std::string& mask = "") {
  const auto formula = Formula::parse(score, mask, captures());
  EXPECT_FALSE(formula.ok()) << score << mask;
  EXPECT_EQ(formula.ok() ? StatusCode::ok : formula.status().code(), StatusCode::invalid_argument);
  return formula.ok() ? "" : formula.status().message();
}

double value_of(const std::string& score) {
  const auto formula = Formula::parse(score, "", captures());
  EXPECT_TRUE(formula.ok()) << formula.status().message();
  expression::Point point;
  point.variables = {1.5, 10.0, 3.0, 2.0, 1.0, 0.0, 32.0, 64.0};
  point.load = [](int capture, std::span<const std::int64_t> indices) {
    return capture == 0 ? static_cast<double>(indices[0]) / 4 : 0.0;
  };
  return formula.ok() ? score_at(**formula, point) : 0.0;
}

TEST(Parser, BindsAsC) {
  EXPECT_EQ(value_of("1 + 2 * 3 - 4 / 2"), 5.0);
  EXPECT_EQ(value_of("-2 * -3"), 6.0);
  EXPECT_EQ(value_of("1 < 2 == 2 < 3 ? 4 : 5"), 4.0);
  EXPECT_EQ(value_of("false || true && false ? 1 : 2"), 2.0);
  EXPECT_EQ(value_of("true ? false ? 1 : 2 : 3"), 2.0);
  EXPECT_EQ(value_of("10 - 4 - 3"), 3.0);
  EXPECT_EQ(value_of("(10 - (4 - 3))"), 9.0);
}

TEST(Parser, ReadsEveryName) {
  EXPECT_EQ(value_of("score"), 1.5);
  EXPECT_EQ(value_of("q + 100 * k + 1000 * head"), 2310.0);
  EXPECT_EQ(value_of("head_kv + batch + q_len + k_len"), 97.0);
  EXPECT_EQ(value_of("vector[head]"), 0.5);
  EXPECT_EQ(value_of("min(3, 2.5) + max(1, 4) + abs(-2)"), 8.5);
  EXPECT_EQ(value_of("floor(2.7) + int(-2.7) + float(3)"), 3.0);
  EXPECT_EQ(value_of("pow(2.0, 3) + pow(4.0, 0.5) + pow(4.0, -1)"), 10.25);
  EXPECT_EQ(value_of("exp2(3) + sqrt(16) + rsqrt(0.25) + log(1)"), 14.0);
  EXPECT_EQ(value_of("sigmoid(0) + tanh(0) + sin(0) + cos(0) + exp(0)"), 2.5);
  EXPECT_EQ(value_of("1e2 + .5 + 2. + 1.25e-1"), 102.625);
}

TEST(Parser, DividesIntegersDownwards) {
  EXPECT_EQ(value_of("-7 / 2"), -4.0);
  EXPECT_EQ(value_of("-7 % 2"), 1.0);
  EXPECT_EQ(value_of("7 / -2"), -4.0);
  EXPECT_EQ(value_of("7 / 0 + 7 % 0"), 0.0);
  EXPECT_EQ(value_of("7 / 2.0"), 3.5);
  EXPECT_EQ(value_of("2147483647 + 1"), -2147483648.0);
}

TEST(Parser, PointsAtWhatIsWrong) {
  EXPECT_EQ(error_of("score + slop"), "score: unknown name `slop` at column 9: `score + slop`");
  EXPECT_THAT(error_of("score + vectr[head]"), HasSubstr("unknown name `vectr`; did you mean `vector`? at column 9"));
  EXPECT_THAT(error_of("scor"), HasSubstr("did you mean `score`?"));
  EXPECT_THAT(error_of("score +"), HasSubstr("a value expected, but the text ends at column 8"));
  EXPECT_THAT(error_of("(score"), HasSubstr("`)` expected after a parenthesis, but the text ends"));
  EXPECT_THAT(error_of("score score"), HasSubstr("unexpected `score` at column 7"));
  EXPECT_THAT(error_of("score & 1"), HasSubstr("unexpected `&`: write `&&` at column 7"));
  EXPECT_THAT(error_of("score \xc3\xa9"), HasSubstr("a character that is not ASCII at column 7"));
  EXPECT_THAT(error_of("2x"), HasSubstr("a number may not be followed by `x`"));
  EXPECT_THAT(error_of("99999999999 + score"), HasSubstr("`99999999999` is beyond 2147483647 at column 1"));
  EXPECT_THAT(error_of("1e99 + score"), HasSubstr("`1e99` is not within the range of float32"));
  EXPECT_THAT(error_of("   "), HasSubstr("the text is empty"));
}

TEST(Parser, RefusesChainedComparisons) {
  EXPECT_EQ(error_of("", "0 <= q - k <= 5"),
            "mask: comparisons do not chain: write `0 <= q - k && q - k <= 5` at column 12: `0 <= q - k <= 5`");
  EXPECT_THAT(error_of("", "flag[k] || 9>q>k || k == 0"), HasSubstr("write `9>q && q > k` at column 15"));
  EXPECT_THAT(error_of("k < q < 5 ? 1 : 2"), HasSubstr("write `k < q && q < 5` at column 7"));
  EXPECT_THAT(error_of("", "k < q < flag[k]"), HasSubstr("write `k < q && q < flag[k]`"));
  EXPECT_THAT(error_of("", "index[k] == index[q] == 3"), HasSubstr("`index[k] == index[q] && index[q] == 3`"));
  EXPECT_THAT(error_of("", "index[k] != index[q] == q"), HasSubstr("`index[k] != index[q] && index[q] == q`"));
  const std::string sum = "q + k + q + k + q + k + q + k + q + k";
  EXPECT_THAT(error_of("", "0 < " + sum + " < " + sum), HasSubstr("write `a <= b && b <= c` at column 43"));
  EXPECT_EQ(value_of("(1 < 2) < 2 ? 4 : 5"), 4.0);
  EXPECT_EQ(value_of("1 < 2 == true == true ? 4 : 5"), 4.0);
  EXPECT_EQ(value_of("1 == 1 == (2 == 3) ? 4 : 5"), 5.0);
}

TEST(Parser, SaysWhatToWriteForWordsOfOtherLanguages) {
  EXPECT_THAT(error_of("", "k <= q and q < 5"), HasSubstr("unexpected `and`: write `&&` at column 8"));
  EXPECT_THAT(error_of("", "(k <= q or q < 5)"), HasSubstr("not `or`: write `||` at column 9"));
  EXPECT_THAT(error_of("", "not k <= q"), HasSubstr("unknown name `not`: write `!` at column 1"));
  EXPECT_THAT(error_of("", "k <= q & q < 5"), HasSubstr("unexpected `&`: write `&&` at column 8"));
  EXPECT_THAT(error_of("", "k <= q | q < 5"), HasSubstr("unexpected `|`: write `||` at column 8"));
  EXPECT_THAT(error_of("", "~flag[k]"), HasSubstr("unexpected `~`: write `!` at column 1"));
  EXPECT_THAT(error_of("", "k = q"), HasSubstr("unexpected `=`: write `==` at column 3"));
  EXPECT_THAT(error_of("score ** 2"), HasSubstr("a value expected, not `*`: write `pow(a, b)` at column 8"));
  EXPECT_THAT(error_of("score if k < q else 0"), HasSubstr("unexpected `if`: write `c ? a : b` at column 7"));
  EXPECT_THAT(error_of("where(k < q, score, 0)"), HasSubstr("unknown name `where`: write `c ? a : b` at column 1"));
  EXPECT_THAT(error_of("", "True"), HasSubstr("unknown name `True`: write `true`"));
  EXPECT_THAT(error_of("", "kv_idx <= q_idx"), HasSubstr("unknown name `kv_idx`: write `k`"));
}

TEST(Parser, SaysHowIndicesAreWritten) {
  EXPECT_THAT(error_of("score + matrix[head , q - k]"),
              HasSubstr("each index has brackets of its own: write `matrix[head][q - k]` at column 21"));
  EXPECT_THAT(error_of("score + matrix(head, q - k)"),
              HasSubstr("`matrix` is a capture, not a function: write `matrix[head][q - k]` at column 9"));
  EXPECT_THAT(error_of("vector((q + 1) * 2)"), HasSubstr("write `vector[(q + 1) * 2]`"));
  EXPECT_THAT(error_of("vector()"), HasSubstr("a value expected, not `)`"));
}

TEST(Parser, SaysTypesOfWhatDoesNotFit) {
  EXPECT_THAT(error_of("k <= q"), HasSubstr("the text is a boolean where a real is needed"));
  EXPECT_THAT(error_of("", "q - k"), HasSubstr("the text is an integer where a boolean is needed; compare it"));
  EXPECT_THAT(error_of("q ? 1 : 2"), HasSubstr("the condition is an integer where a boolean is needed"));
  EXPECT_THAT(error_of("vector[score]"), HasSubstr("an index is a real where an integer is needed at column 8"));
  EXPECT_THAT(error_of("vector[1][2]"), HasSubstr("`vector` has 1 dimension, but 2 indices are given"));
  EXPECT_THAT(error_of("matrix"), HasSubstr("`matrix` has 2 dimensions, but 0 indices are given"));
  EXPECT_THAT(error_of("min(1)"), HasSubstr("`min` takes 2 arguments, not 1"));
  EXPECT_THAT(error_of("tanh"), HasSubstr("`(` expected after `tanh`"));
  EXPECT_THAT(error_of("score % 2"), HasSubstr("`%` takes integers"));
  EXPECT_THAT(error_of("pow(score, k)"), HasSubstr("the exponent of `pow` must be a number"));
  EXPECT_THAT(error_of("true ? 1 : false"), HasSubstr("`? :` between a boolean and a number"));
  EXPECT_THAT(error_of("", "score > 0"), HasSubstr("mask: a mask may not read `score`"));
  EXPECT_THAT(error_of("q && true ? 1 : 0"), HasSubstr("the operand of `&&` is an integer where a boolean is needed"));
}

TEST(Parser, HasLimits) {
  EXPECT_THAT(error_of(std::string(5000, ' ')), HasSubstr("the text has 5000 characters, of which 4096 are the most"));
  EXPECT_THAT(error_of(std::string(200, '(') + "score"), HasSubstr("more than 64 levels"));
  EXPECT_THAT(error_of(std::string(200, '-') + "score"), HasSubstr("more than 64 signs"));
  std::string long_sum = "score";
  for (int i = 0; i < 600; ++i) long_sum += "+q*" + std::to_string(i + 2);
  EXPECT_THAT(error_of(long_sum), HasSubstr("more than 512 operations"));
}

TEST(Parser, TakesNoStrangeCaptures) {
  const auto error = [](const CaptureType& capture) {
    const auto formula = Formula::parse("score", "", std::vector<CaptureType>{capture});
    return formula.ok() ? std::string() : formula.status().message();
  };
  EXPECT_THAT(error({"q", DType::float32, 1}), HasSubstr("`q` is a name of the language"));
  EXPECT_THAT(error({"a b", DType::float32, 1}), HasSubstr("is not a name"));
  EXPECT_THAT(error({"", DType::float32, 1}), HasSubstr("is not a name"));
  EXPECT_THAT(error({"a", DType::float8_e4m3, 1}), HasSubstr("`a` is float8_e4m3, where float32"));
  EXPECT_THAT(error({"a", DType::float32, 5}), HasSubstr("has 5 dimensions, 4 are the most"));
  const std::vector<CaptureType> twice{{"a", DType::float32, 1}, {"a", DType::int32, 1}};
  EXPECT_THAT(Formula::parse("score", "", twice).status().message(), HasSubstr("`a` is given twice"));
  EXPECT_THAT(Formula::parse("", "", {}).status().message(), HasSubstr("neither a score nor a mask is given"));
}

TEST(Parser, SharesWhatIsTheSame) {
  const auto formula = Formula::parse("tanh(score) * tanh(score) + tanh(score)", "", {});
  ASSERT_TRUE(formula.ok());
  int tanhs = 0;
  for (const expression::Id id : expression::reachable((*formula)->graph(), std::array{(*formula)->score()})) {
    if ((*formula)->graph()[id].op == expression::Op::tanh) ++tanhs;
  }
  EXPECT_EQ(tanhs, 1);
}

TEST(Parser, EndsQuicklyOnTextsThatGrowWhenTheyAreWrittenOut) {
  std::string text = "score";
  for (int i = 0; i < 30; ++i) text = "pow(" + text + ", 16)";
  const auto formula = Formula::parse(text, "", {});
  ASSERT_TRUE(formula.ok()) << formula.status().message();
  EXPECT_LT((*formula)->explain().size(), 100'000U);
}

}  // namespace
}  // namespace strobe::test
