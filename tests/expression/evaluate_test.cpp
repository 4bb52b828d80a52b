// SPDX-License-Identifier: Apache-2.0
// The bound of a text against its evaluation in float32, operation by operation.
#include "expression/evaluate.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "expression/arithmetic.h"
#include "random_text.h"

namespace strobe::test {
namespace {

// As an engine may evaluate it: every real is rounded to float32.
double in_float32(const expression::Formula& formula, const expression::Point& point) {
  const expression::Graph& graph = formula.graph();
  std::vector<double> values(graph.size());
  for (const expression::Id id : expression::reachable(graph, std::array{formula.score()})) {
    const expression::Node& node = graph[id];
    std::array<double, expression::kMostChildren> x{};
    std::array<std::int64_t, expression::kMostChildren> indices{};
    for (std::size_t i = 0; i < node.count; ++i) {
      x[i] = values[node.children[i]];
      indices[i] = static_cast<std::int64_t>(x[i]);
    }
    switch (node.op) {
      case expression::Op::literal: values[id] = node.value; break;
      case expression::Op::variable: values[id] = point.variables[node.which]; break;
      case expression::Op::load: values[id] = point.load(node.which, {indices.data(), node.count}); break;
      default: values[id] = expression::apply(node, graph[node.children[node.count - 1]].type, {x.data(), node.count});
    }
    if (node.type == expression::Type::real) values[id] = static_cast<float>(values[id]);
  }
  return values[formula.score()];
}

TEST(Bound, HoldsForFloat32AndScoresWithinTheirError) {
  int certain = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const std::string text = random_real(random, 5);
    const auto formula = expression::Formula::parse(text, "", captures());
    ASSERT_TRUE(formula.ok()) << text;
    expression::Point point = random_point(random);
    const double score = point.variables[0];
    point.score_error = 1e-6 * std::fabs(score);
    const auto ids = expression::reachable((*formula)->graph(), std::array{(*formula)->score()});
    const expression::Bounded bounded = expression::evaluate_bounded((*formula)->graph(), ids, point).back();
    point.variables[0] = static_cast<float>(score + (random.uniform() - 0.5) * 1.8 * point.score_error);
    const double computed = in_float32(**formula, point);
    ASSERT_LE(std::fabs(computed - bounded.value), bounded.error) << text << " is " << bounded.value;
    if (bounded.error < 1e-3 * (1.0 + std::fabs(bounded.value))) ++certain;
  }
  EXPECT_GT(certain, 2500);
}

TEST(Bound, IsNothingForWhatIsExact) {
  const auto formula = expression::Formula::parse("k <= q ? float(q - k) : 0.0", "", {});
  ASSERT_TRUE(formula.ok());
  expression::Point point;
  point.variables = {0.0, 5.0, 3.0};
  const auto ids = expression::reachable((*formula)->graph(), std::array{(*formula)->score()});
  const expression::Bounded bounded = expression::evaluate_bounded((*formula)->graph(), ids, point).back();
  EXPECT_EQ(bounded.value, 2.0);
  EXPECT_LT(bounded.error, 1e-6);
}

TEST(Bound, SpansBothValuesOfAComparisonThatMayComeOutEitherWay) {
  const auto formula = expression::Formula::parse("score < 1.0 ? 5.0 : 7.0", "", {});
  ASSERT_TRUE(formula.ok());
  expression::Point point;
  point.variables[0] = 1.0 - 1e-9;
  point.score_error = 1e-6;
  const auto ids = expression::reachable((*formula)->graph(), std::array{(*formula)->score()});
  EXPECT_GE(expression::evaluate_bounded((*formula)->graph(), ids, point).back().error, 2.0);
}

}  // namespace
}  // namespace strobe::test
