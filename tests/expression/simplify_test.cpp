// SPDX-License-Identifier: Apache-2.0
// Simplified texts say what was written, are one whatever their order, and print as texts again.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "expression/print.h"
#include "random_text.h"

namespace strobe::test {
namespace {

using expression::Formula;

std::shared_ptr<const Formula> parsed(const std::string& score, const std::string& mask) {
  const auto formula = Formula::parse(score, mask, captures());
  EXPECT_TRUE(formula.ok()) << score << mask << ": " << formula.status().message();
  return formula.ok() ? *formula : nullptr;
}

std::string simplified(const std::string& score) {
  const auto formula = parsed(score, "");
  return expression::text_of(formula->graph(), formula->score(), formula->captures());
}

double written_at(const Formula& formula, expression::Id root, const expression::Point& point) {
  const auto ids = expression::reachable(formula.written(), std::array{root});
  return expression::evaluate(formula.written(), ids, point).back();
}

TEST(Simplify, KeepsTheValueOfRandomTexts) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const std::string score = random_real(random, 5);
    const std::string mask = random_boolean(random, 4);
    const auto formula = parsed(score, mask);
    ASSERT_NE(formula, nullptr);
    for (int i = 0; i < 4; ++i) {
      const expression::Point point = random_point(random);
      const double written = written_at(*formula, formula->written_score(), point);
      ASSERT_NEAR(score_at(*formula, point), written, 1e-9 * (1.0 + std::fabs(written))) << score;
      ASSERT_EQ(mask_at(*formula, point), written_at(*formula, formula->written_mask(), point) != 0.0) << mask;
    }
  }
}

TEST(Simplify, MultipliesWithReciprocalsWhereNobodySeesIt) {
  const auto divides = [](const std::string& score) { return simplified(score).find('/') != std::string::npos; };
  EXPECT_TRUE(divides("floor(float(k) / 41.0)"));
  EXPECT_TRUE(divides("vector[head] / 3.0"));
  EXPECT_FALSE(divides("float(k) / 64.0"));
  EXPECT_FALSE(divides("score / 30.0"));
  EXPECT_FALSE(divides("tanh((score + float(k)) / 30.0)"));
}

TEST(Simplify, PrintsATextOfTheSameMeaning) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    const auto formula = parsed(random_real(random, 4), random_boolean(random, 4));
    ASSERT_NE(formula, nullptr);
    const std::string score = expression::text_of(formula->graph(), formula->score(), formula->captures());
    const std::string mask = expression::text_of(formula->graph(), formula->mask(), formula->captures());
    if (score.find("...") != std::string::npos) continue;
    const auto again = parsed(score, mask);
    ASSERT_NE(again, nullptr);
    const expression::Point point = random_point(random);
    const double value = score_at(*formula, point);
    ASSERT_NEAR(score_at(*again, point), value, 1e-5 * (1.0 + std::fabs(value))) << score;
    ASSERT_EQ(mask_at(*again, point), mask_at(*formula, point)) << mask;
  }
}

TEST(Simplify, MakesOneOfTextsThatDifferInOrder) {
  const auto hash = [](const std::string& score) { return parsed(score, "")->hash(); };
  EXPECT_EQ(hash("score + vector[head]"), hash("vector[head] + score"));
  EXPECT_EQ(hash("score * 2 * 3"), hash("6 * score"));
  EXPECT_EQ(hash("score / 4"), hash("score * 0.25"));
  EXPECT_EQ(hash("score + matrix[head][k - q + 5]"), hash("score + matrix[head][5 + k - q]"));
  EXPECT_NE(hash("score + vector[head]"), hash("score + vector[batch]"));
  EXPECT_NE(hash("score"), hash("score + 1"));
}

TEST(Simplify, FoldsWhatIsKnown) {
  EXPECT_EQ(simplified("score + 0"), "score");
  EXPECT_EQ(simplified("score * 1 + (2 * 3 - 6)"), "score");
  EXPECT_EQ(simplified("-(-score)"), "score");
  EXPECT_EQ(simplified("true ? score : 2"), "score");
  EXPECT_EQ(simplified("score + (q - q)"), "score");
  EXPECT_EQ(simplified("score + float(7 / 2 + -7 / 2)"), "score - 1.0");
  EXPECT_EQ(simplified("score + -7 % 3"), "score + 2.0");
  EXPECT_EQ(simplified("k == k ? score : 0"), "score");
  EXPECT_EQ(simplified("pow(score, 0)"), "1.0");
}

}  // namespace
}  // namespace strobe::test
