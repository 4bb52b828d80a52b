// SPDX-License-Identifier: Apache-2.0
// Expressions in float64: values, and how far from them an engine's float32 may be.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "expression/graph.h"
#include "expression/names.h"

namespace strobe::expression {

/// What an expression is evaluated for.
struct Point {
  std::array<double, kVariables> variables{};  // by Variable
  double score_error = 0.0;                    // of the score
  // An element of a capture; indices outside of it give 0.
  std::function<double(int capture, std::span<const std::int64_t> indices)> load;
};

/// A value and a bound on an engine's distance from it. Of a boolean that may come out either way the bound is 1.
struct Bounded {
  double value = 0.0;
  double error = 0.0;
};

/// The nodes' values, in the order of `ids`, which is that of reachable().
std::vector<double> evaluate(const Graph& graph, std::span<const Id> ids, const Point& point);

/// The same with bounds, to first order in float32's roundoff. Functions are taken to be within 4 units in the last
/// place; a comparison whose sides are nearer to each other than their bounds may come out either way.
std::vector<Bounded> evaluate_bounded(const Graph& graph, std::span<const Id> ids, const Point& point);

}  // namespace strobe::expression
