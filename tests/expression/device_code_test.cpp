// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expression/cuda.h"
#include "random_text.h"

namespace strobe::test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string code_of(const std::string& score, const std::string& mask) {
  const auto formula = expression::Formula::parse(score, mask, captures());
  EXPECT_TRUE(formula.ok()) << formula.status().message();
  return formula.ok() ? expression::device_code(**formula, (*formula)->parts()) : "";
}

TEST(DeviceCode, HasWhatTheFormulaHas) {
  const std::string both = code_of("score * vector[head]", "k <= q");
  for (const char* const name : {"score_of(", "slope_of(", "for_each_read(", "shows(", "visibility("}) {
    EXPECT_THAT(both, HasSubstr(name));
  }
  EXPECT_THAT(code_of("", "k <= q"), Not(HasSubstr("score_of(")));
  EXPECT_THAT(code_of("score", ""), Not(HasSubstr("shows(")));
}

TEST(DeviceCode, MayBeOfOneOfTheTexts) {
  const auto formula = expression::Formula::parse("score * vector[head]", "vector[q] < 3.0", captures());
  ASSERT_TRUE(formula.ok()) << formula.status().message();
  const std::string score = expression::device_code(**formula, {.score = true});
  EXPECT_THAT(score, HasSubstr("score_of("));
  EXPECT_THAT(score, Not(HasSubstr("shows(")));
  const std::string mask = expression::device_code(**formula, {.mask = true});
  EXPECT_THAT(mask, HasSubstr("visibility("));
  EXPECT_THAT(mask, Not(HasSubstr("score_of(")));
}

TEST(DeviceCode, DoesNotDependOnOrderOrSpaces) {
  EXPECT_EQ(code_of("score + 2 * vector[head]", ""), code_of("score+2*vector [ head ]", ""));
}

TEST(DeviceCode, HasLiteralsToTheBit) {
  EXPECT_THAT(code_of("score * 0.1", ""), HasSubstr("__uint_as_float(0x3dcccccdU)"));
}

TEST(DeviceCode, FindsWhatIsKeptOncePerLine) {
  const std::string code = code_of("score * vector[q] + exp(vector[k]) + vector[k - q]", "");
  for (const char* const name : {"query_values(", "key_values(", "diagonal_values("})
    EXPECT_THAT(code, HasSubstr(name));
  EXPECT_THAT(code, Not(HasSubstr("tile_values(")));
  const std::string from_kept = code.substr(code.find("typename Kept"));
  const std::string score = from_kept.substr(0, from_kept.find("\n}"));
  EXPECT_THAT(score, HasSubstr("real_of(kept.query[0])"));
  EXPECT_THAT(score, HasSubstr("real_of(kept.key[0])"));
  EXPECT_THAT(score, HasSubstr("real_of(kept.diagonal[0])"));
  EXPECT_THAT(score, Not(HasSubstr("load_float")));
}

TEST(DeviceCode, TakesDistancesAsReals) {
  const auto from_kept = [](const char* score) {
    const std::string code = code_of(score, "");
    return code.substr(code.find("typename Kept"));
  };
  EXPECT_THAT(from_kept("score + 0.5 * (k - q)"), HasSubstr("= position.distance;"));
  EXPECT_THAT(from_kept("score + 0.5 * (q - k)"), HasSubstr("= negate(position.distance);"));
  EXPECT_THAT(from_kept("score - 0.5 * abs(q - k)"), HasSubstr("absolute("));
  for (const char* const score : {"score + 0.5 * (k - q)", "score + 0.5 * (q - k)", "score - 0.5 * abs(q - k)"}) {
    const std::string function = from_kept(score).substr(0, from_kept(score).find("\n}"));
    EXPECT_THAT(function, Not(HasSubstr("to_real"))) << score;
  }
  EXPECT_THAT(from_kept("score + 0.5 * (k + q)"), HasSubstr("to_real"));
}

TEST(DeviceCode, LooksAtIntegersOfATileAlone) {
  EXPECT_THAT(code_of("", "float(q) * 0.5 < 3.0 && k <= q"), HasSubstr("any_boolean()"));
}

}  // namespace
}  // namespace strobe::test
