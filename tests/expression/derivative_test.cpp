// SPDX-License-Identifier: Apache-2.0
// Derivatives by the score and by captures against central differences, in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "expression/print.h"
#include "random_text.h"

namespace strobe::test {
namespace {

using expression::Formula;
using expression::Point;
using expression::Variable;

std::shared_ptr<const Formula> parsed(const std::string& score) {
  const auto formula = Formula::parse(score, "", captures());
  EXPECT_TRUE(formula.ok()) << score << ": " << formula.status().message();
  return formula.ok() ? *formula : nullptr;
}

double value_of(const Formula& formula, expression::Id id, const Point& point) {
  const auto ids = expression::reachable(formula.graph(), std::array{id});
  return expression::evaluate(formula.graph(), ids,
                              point)[static_cast<std::size_t>(std::ranges::lower_bound(ids, id) - ids.begin())];
}

Point with_score(Point point, double score) {
  point.variables[static_cast<std::size_t>(Variable::score)] = score;
  return point;
}

// The value between two steps; where the steps do not agree there is a corner between them.
struct Difference {
  double value;
  bool smooth;
};

template <class At>
Difference difference(const At& at) {
  constexpr double kStep = 0x1p-20;
  const double left = (at(0.0) - at(-kStep)) / kStep;
  const double right = (at(kStep) - at(0.0)) / kStep;
  const double value = (at(kStep) - at(-kStep)) / (2.0 * kStep);
  return {value, std::fabs(left - right) <= 1e-3 * (1.0 + std::fabs(value))};
}

TEST(Derivative, OfTheScoreIsTheCentralDifference) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const std::string text = random_real(random, 4);
    const auto formula = parsed(text);
    ASSERT_NE(formula, nullptr);
    const Point point = random_point(random);
    const double score = point.variables[0];
    const Difference expected =
        difference([&](double step) { return score_at(*formula, with_score(point, score + step)); });
    if (!expected.smooth || std::fabs(expected.value) > 1e3) continue;
    ++compared;
    ASSERT_NEAR(value_of(*formula, formula->slope(), point), expected.value, 1e-4 * (1.0 + std::fabs(expected.value)))
        << text << " at " << score;
  }
  EXPECT_GT(compared, 1800);
}

TEST(Derivative, OfEachElementOfACaptureIsTheCentralDifference) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const std::string text = random_real(random, 4) + " + matrix[head][k - q + 5] * vector[head]";
    const auto formula = parsed(text);
    ASSERT_NE(formula, nullptr);
    const Point point = random_point(random);
    for (const expression::Read& read : formula->reads()) {
      std::vector<std::int64_t> element;
      for (const expression::Id index : formula->graph()[read.load].inputs()) {
        element.push_back(static_cast<std::int64_t>(value_of(*formula, index, point)));
      }
      // The element alone moves, wherever the text reads it.
      double sum = 0.0;
      for (const expression::Read& other : formula->reads()) {
        std::vector<std::int64_t> indices;
        for (const expression::Id index : formula->graph()[other.load].inputs()) {
          indices.push_back(static_cast<std::int64_t>(value_of(*formula, index, point)));
        }
        if (other.capture == read.capture && indices == element) sum += value_of(*formula, other.derivative, point);
      }
      const Difference expected = difference([&](double step) {
        Point moved = point;
        moved.load = [&, step](int capture, std::span<const std::int64_t> indices) {
          const bool is_it = capture == read.capture && std::ranges::equal(indices, element);
          return point.load(capture, indices) + (is_it ? step : 0.0);
        };
        return score_at(*formula, moved);
      });
      if (!expected.smooth || std::fabs(expected.value) > 1e3) continue;
      ++compared;
      ASSERT_NEAR(sum, expected.value, 1e-4 * (1.0 + std::fabs(expected.value))) << text;
    }
  }
  EXPECT_GT(compared, 3000);
}

TEST(Derivative, OfABranchThatIsNotTakenIsNothingThoughItIsInfinite) {
  const auto formula = parsed("k <= q ? log(float(q - k)) * score : 0.0 + sqrt(score - 100) * 0.5");
  Point point;
  point.variables = {2.0, 3.0, 3.0, 0.0, 0.0, 0.0, 8.0, 8.0};  // q = k: log(0), which is taken
  EXPECT_EQ(value_of(*formula, formula->slope(), point), -std::numeric_limits<double>::infinity());
  point.variables[static_cast<std::size_t>(Variable::k)] = 1.0;
  EXPECT_DOUBLE_EQ(value_of(*formula, formula->slope(), point), std::log(2.0));
}

TEST(Derivative, AtACornerIsThatOfTheOperandThatIsTaken) {
  Point point;
  EXPECT_EQ(value_of(*parsed("max(score, 0.0)"), parsed("max(score, 0.0)")->slope(), point), 1.0);
  EXPECT_EQ(value_of(*parsed("min(2.0 * score, score)"), parsed("min(2.0 * score, score)")->slope(), point), 2.0);
  EXPECT_EQ(value_of(*parsed("abs(score)"), parsed("abs(score)")->slope(), point), 0.0);
}

TEST(Derivative, OfSoftcapAndAlibiIsSimple) {
  const auto text = [](const std::string& score) {
    const auto formula = parsed(score);
    return expression::text_of(formula->graph(), formula->slope(), formula->captures());
  };
  EXPECT_EQ(text("score + vector[head] * (k - q)"), "1.0");
  EXPECT_EQ(text("score * vector[head]"), "vector[head]");
  EXPECT_EQ(text("k <= q ? score : score * 2"), "k <= q ? 1.0 : 2.0");
}

TEST(Patterns, AreReadFromTheIndices) {
  const auto pattern = [](const std::string& read) { return parsed("score + " + read)->reads().at(0).pattern; };
  using expression::Pattern;
  EXPECT_EQ(pattern("vector[head]"), Pattern::head);
  EXPECT_EQ(pattern("matrix[batch][head_kv * 2]"), Pattern::head);
  EXPECT_EQ(pattern("vector[q]"), Pattern::query);
  EXPECT_EQ(pattern("matrix[head][k / 4]"), Pattern::key);
  EXPECT_EQ(pattern("matrix[head][k - q + 511]"), Pattern::diagonal);
  EXPECT_EQ(pattern("vector[min(abs(k - q), 9)]"), Pattern::diagonal);
  EXPECT_EQ(pattern("vector[(q + 3 - k) / 2]"), Pattern::diagonal);
  EXPECT_EQ(pattern("matrix[head][index[max(q - k, 0)]]"), Pattern::diagonal);
  EXPECT_EQ(pattern("matrix[q][k]"), Pattern::pair);
  EXPECT_EQ(pattern("vector[q + k]"), Pattern::scattered);
  EXPECT_EQ(pattern("vector[index[k] - q]"), Pattern::scattered);
}

}  // namespace
}  // namespace strobe::test
