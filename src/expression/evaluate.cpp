// SPDX-License-Identifier: Apache-2.0
#include "expression/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "expression/arithmetic.h"

namespace strobe::expression {
namespace {

constexpr double kRoundoff = 0x1p-24;             // of a float32 operation
constexpr double kFunctionError = 8 * kRoundoff;  // 4 units in the last place
constexpr double kTiny = 0x1p-126;                // results below may be flushed to 0
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double loaded(const Node& node, std::span<const double> x, const Point& point) {
  std::array<std::int64_t, kMostChildren> indices{};
  std::ranges::transform(x, indices.begin(), [](double index) { return static_cast<std::int64_t>(index); });
  return point.load(node.which, {indices.data(), x.size()});
}

double value_of(const Graph& graph, const Node& node, std::span<const double> x, const Point& point) {
  switch (node.op) {
    case Op::literal: return node.value;
    case Op::variable: return point.variables[node.which];
    case Op::load: return loaded(node, x, point);
    default: return apply(node, graph[node.children[node.count - 1]].type, x);
  }
}

/// |derivative| * error, where an error of 0 counts whatever the derivative is.
double carried(double derivative, double error) { return error == 0.0 ? 0.0 : std::abs(derivative) * error; }

/// What a real operation adds by its own rounding, relative to its result.
double own_rounding(const Node& node, double value) {
  switch (node.op) {
    case Op::literal: return static_cast<double>(static_cast<float>(value)) == value ? 0.0 : kRoundoff;
    case Op::to_real:
    case Op::add:
    case Op::multiply:
    case Op::divide: return kRoundoff;
    case Op::exp:
    case Op::exp2:
    case Op::log:
    case Op::tanh:
    case Op::sigmoid:
    case Op::sqrt:
    case Op::rsqrt:
    case Op::sin:
    case Op::cos: return kFunctionError;
    default: return 0.0;
  }
}

/// The operands' errors in a real operation's result.
double inherited(const Node& node, double value, std::span<const Bounded> x) {
  const Bounded a = x.empty() ? Bounded{} : x[0];
  const Bounded b = x.size() < 2 ? Bounded{} : x[1];
  switch (node.op) {
    case Op::add: return a.error + b.error;
    case Op::multiply: return carried(b.value, a.error) + carried(a.value, b.error) + a.error * b.error;
    case Op::divide: {
      const double smallest = std::abs(b.value) - b.error;
      if (smallest <= 0.0) return a.error + b.error == 0.0 ? 0.0 : kInfinity;
      return (a.error + carried(value, b.error)) / smallest;
    }
    case Op::minimum:
    case Op::maximum: return std::max(a.error, b.error);
    case Op::exp: return value * std::expm1(a.error);
    case Op::exp2: return value * std::expm1(a.error * std::numbers::ln2);
    case Op::log:
      return a.error < std::abs(a.value) ? -std::log1p(-a.error / std::abs(a.value)) : carried(kInfinity, a.error);
    case Op::sqrt: return a.value > 0.0 ? std::min(a.error / value, std::sqrt(a.error)) : std::sqrt(a.error);
    case Op::rsqrt: {
      const double smallest = a.value - a.error;
      return smallest > 0.0 ? carried(0.5 * value / smallest, a.error) : carried(kInfinity, a.error);
    }
    case Op::sigmoid: return a.error / 4;
    case Op::negate:
    case Op::absolute:
    case Op::tanh:
    case Op::sin:
    case Op::cos:
    case Op::to_real: return a.error;
    case Op::floor: return std::floor(a.value - a.error) == std::floor(a.value + a.error) ? 0.0 : 1.0 + a.error;
    default: return 0.0;
  }
}

/// Whether a comparison of reals may come out either way.
bool is_uncertain(const Bounded& a, const Bounded& b) {
  const double margin = a.error + b.error;
  return margin > 0.0 && !(std::abs(a.value - b.value) > margin);
}

Bounded chosen(std::span<const Bounded> x) {
  const Bounded& taken = x[0].value != 0.0 ? x[1] : x[2];
  if (x[0].error == 0.0) return taken;
  return {taken.value, std::abs(x[1].value - x[2].value) + std::max(x[1].error, x[2].error)};
}

/// Of booleans and integers: exact, unless they hang on a real that is not.
double discrete_error(const Node& node, Type operand, double value, std::span<const Bounded> x) {
  const bool inexact = std::ranges::any_of(x, [](const Bounded& one) { return one.error != 0.0; });
  if (!inexact) return 0.0;
  switch (node.op) {
    case Op::less:
    case Op::less_equal:
    case Op::equal: return operand != Type::real || is_uncertain(x[0], x[1]) ? 1.0 : 0.0;
    case Op::logical_and: return (x[0].error == 0 && x[0].value == 0) || (x[1].error == 0 && x[1].value == 0) ? 0 : 1;
    case Op::logical_or: return (x[0].error == 0 && x[0].value != 0) || (x[1].error == 0 && x[1].value != 0) ? 0 : 1;
    case Op::logical_not: return 1.0;
    case Op::to_integer:
      return truncated(x[0].value - x[0].error) == truncated(x[0].value + x[0].error) ? 0.0 : kInfinity;
    default: return std::isnan(value) ? 0.0 : kInfinity;
  }
}

template <class Value, class Evaluate>
std::vector<Value> in_order(const Graph& graph, std::span<const Id> ids, const Evaluate& evaluate) {
  std::vector<Value> by_node(graph.size());
  std::vector<Value> values;
  values.reserve(ids.size());
  for (const Id id : ids) {
    const Node& node = graph[id];
    std::array<Value, kMostChildren> operands{};
    for (std::size_t i = 0; i < node.count; ++i) operands[i] = by_node[node.children[i]];
    by_node[id] = evaluate(node, std::span<const Value>(operands.data(), node.count));
    values.push_back(by_node[id]);
  }
  return values;
}

}  // namespace

std::vector<double> evaluate(const Graph& graph, std::span<const Id> ids, const Point& point) {
  return in_order<double>(graph, ids,
                          [&](const Node& node, std::span<const double> x) { return value_of(graph, node, x, point); });
}

std::vector<Bounded> evaluate_bounded(const Graph& graph, std::span<const Id> ids, const Point& point) {
  return in_order<Bounded>(graph, ids, [&](const Node& node, std::span<const Bounded> x) -> Bounded {
    std::array<double, kMostChildren> operands{};
    std::ranges::transform(x, operands.begin(), &Bounded::value);
    const double value = value_of(graph, node, {operands.data(), x.size()}, point);
    if (node.op == Op::variable) {
      return {value, node.which == static_cast<int>(Variable::score) ? point.score_error : 0.0};
    }
    if (node.op == Op::select) {
      const Bounded result = chosen(x);
      return {value, node.type == Type::real || result.error == 0.0 ? result.error
                     : node.type == Type::boolean                   ? 1.0
                                                                    : kInfinity};
    }
    if (node.type != Type::real) {
      const Type operand = node.count == 0 ? node.type : graph[node.children[0]].type;
      return {value, node.op == Op::load ? 0.0 : discrete_error(node, operand, value, x)};
    }
    const double rounding = own_rounding(node, value);
    const double flushed = rounding > 0.0 && node.op != Op::literal ? kTiny : 0.0;
    const double own = std::isfinite(value) ? std::abs(value) * rounding + flushed : 0.0;
    return {value, node.op == Op::load ? 0.0 : inherited(node, value, x) + own};
  });
}

}  // namespace strobe::expression
