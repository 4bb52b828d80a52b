// SPDX-License-Identifier: Apache-2.0
#include "expression/simplify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "expression/arithmetic.h"

namespace strobe::expression {

bool Simplify::all_literals(const Node& node) const {
  return std::ranges::all_of(node.inputs(), [&](Id id) { return graph_.is_literal(id); });
}

/// A node of literals by its value.
Id Simplify::folded(const Node& node) {
  std::array<double, kMostChildren> values{};
  for (std::size_t i = 0; i < node.count; ++i) values[i] = graph_[node.children[i]].value;
  const Type operand = graph_[node.children[node.count - 1]].type;
  return graph_.literal(node.type, apply(node, operand, {values.data(), node.count}));
}

Id Simplify::unary(const Node& node) {
  const Id a = node.children[0];
  const Node operand = graph_[a];
  if (all_literals(node)) return folded(node);
  switch (node.op) {
    case Op::negate:
      if (operand.op == Op::negate) return operand.children[0];
      // The sign goes into a literal factor.
      if (operand.op == Op::multiply && operand.type == Type::real) {
        for (int i = 0; i < 2; ++i) {
          const Id factor = operand.children[i];
          if (!graph_.is_literal(factor)) continue;
          return graph_.add(Op::multiply, graph_.real(-graph_[factor].value), operand.children[1 - i]);
        }
      }
      break;
    case Op::logical_not:
      if (operand.op == Op::logical_not) return operand.children[0];
      break;
    case Op::to_integer:
      if (operand.type == Type::integer) return a;
      if (operand.op == Op::to_real && graph_[operand.children[0]].type == Type::integer) return operand.children[0];
      break;
    case Op::to_real:
      if (operand.type == Type::real) return a;
      break;
    case Op::absolute:
      if (operand.op == Op::absolute) return a;
      if (operand.op == Op::negate) return graph_.add(Op::absolute, operand.children[0]);
      break;
    case Op::floor:
      if (operand.op == Op::floor || operand.op == Op::to_real) return a;
      break;
    default: break;
  }
  return graph_.insert(node);
}

Id Simplify::sum(const Node& node) {
  const auto [a, b] = std::pair(node.children[0], node.children[1]);
  if (graph_.is_literal(a, 0.0)) return b;
  if (graph_.is_literal(b, 0.0)) return a;
  if (node.type != Type::integer) return graph_.insert(node);
  // Integers wrap around, so that their sums may be taken in any order: literals come last, opposites vanish.
  const Node x = graph_[a];
  const Node y = graph_[b];
  if ((x.op == Op::negate && x.children[0] == b) || (y.op == Op::negate && y.children[0] == a)) {
    return graph_.integer(0);
  }
  const auto literal_of = [&](const Node& sum) {
    if (sum.op != Op::add) return -1;
    return graph_.is_literal(sum.children[0]) ? 0 : graph_.is_literal(sum.children[1]) ? 1 : -1;
  };
  for (const auto& [one, other] : {std::pair(a, b), std::pair(b, a)}) {
    const Node of_one = graph_[one];
    const int at = literal_of(of_one);
    if (at < 0) continue;
    const Id literal = of_one.children[at];
    const Id rest = of_one.children[1 - at];
    if (graph_.is_literal(other)) return graph_.add(Op::add, rest, graph_.add(Op::add, literal, other));
    return graph_.add(Op::add, graph_.add(Op::add, rest, other), literal);
  }
  return graph_.insert(node);
}

Id Simplify::product(const Node& node) {
  for (int i = 0; i < 2; ++i) {
    const Id factor = node.children[i];
    const Id other = node.children[1 - i];
    if (!graph_.is_literal(factor)) continue;
    const double value = graph_[factor].value;
    if (value == 0.0) return factor;
    if (value == 1.0) return other;
    if (value == -1.0) return graph_.add(Op::negate, other);
    const Node inner = graph_[other];
    if (inner.op == Op::negate && node.type == Type::real) {
      return graph_.add(Op::multiply, graph_.real(-value), inner.children[0]);
    }
    if (inner.op == Op::multiply) {  // literals of a row of factors become one
      for (int j = 0; j < 2; ++j) {
        if (!graph_.is_literal(inner.children[j])) continue;
        return graph_.add(Op::multiply, graph_.add(Op::multiply, factor, inner.children[j]), inner.children[1 - j]);
      }
    }
  }
  return graph_.insert(node);
}

bool Simplify::depends_on_score(Id id) const {
  const std::vector<Id> ids = reachable(graph_, std::array{id});
  return std::ranges::any_of(ids, [&](Id one) {
    return graph_[one].op == Op::variable && graph_[one].which == static_cast<int>(Variable::score);
  });
}

/// A product with the reciprocal is another number in the last bit. Of a score that is less than its own error; of what
/// positions say it is not: floor(float(k) / 41.0) of k = 41 is 1.
Id Simplify::quotient(const Node& node) {
  const auto [a, b] = std::pair(node.children[0], node.children[1]);
  if (graph_.is_literal(a, 0.0)) return a;
  if (!graph_.is_literal(b)) return graph_.insert(node);
  const double reciprocal = 1.0 / graph_[b].value;
  if (!std::isfinite(reciprocal) || std::abs(reciprocal) < 0x1p-120) return graph_.insert(node);
  int exponent = 0;
  const bool is_exact = std::abs(std::frexp(reciprocal, &exponent)) == 0.5;
  if (!is_exact && !depends_on_score(a)) return graph_.insert(node);
  return graph_.add(Op::multiply, graph_.real(reciprocal), a);
}

Id Simplify::comparison(const Node& node) {
  const auto [a, b] = std::pair(node.children[0], node.children[1]);
  if (a == b && graph_[a].type != Type::real) return graph_.boolean(node.op != Op::less);
  return graph_.insert(node);
}

Id Simplify::logic(const Node& node) {
  const auto [a, b] = std::pair(node.children[0], node.children[1]);
  const bool deciding = node.op == Op::logical_or;  // the value that decides alone
  for (const auto& [one, other] : {std::pair(a, b), std::pair(b, a)}) {
    if (graph_.is_literal(one)) return (graph_[one].value != 0.0) == deciding ? one : other;
    if (graph_[one].op == Op::logical_not && graph_[one].children[0] == other) return graph_.boolean(deciding);
  }
  return a == b ? a : graph_.insert(node);
}

Id Simplify::binary(const Node& node) {
  const auto [a, b] = std::pair(node.children[0], node.children[1]);
  if (all_literals(node)) return folded(node);
  switch (node.op) {
    case Op::add: return sum(node);
    case Op::multiply: return product(node);
    case Op::divide: return quotient(node);
    case Op::floor_divide: return graph_.is_literal(b, 1.0) ? a : graph_.insert(node);
    case Op::minimum:
    case Op::maximum: return a == b ? a : graph_.insert(node);
    case Op::less:
    case Op::less_equal:
    case Op::equal: return comparison(node);
    case Op::logical_and:
    case Op::logical_or: return logic(node);
    default: return graph_.insert(node);
  }
}

Id Simplify::select(const Node& node) {
  const auto [condition, yes, no] = std::tuple(node.children[0], node.children[1], node.children[2]);
  if (graph_.is_literal(condition)) return graph_[condition].value != 0.0 ? yes : no;
  if (yes == no) return yes;
  if (graph_[condition].op == Op::logical_not) return graph_.select(graph_[condition].children[0], no, yes);
  if (node.type == Type::boolean) {
    if (graph_.is_literal(yes, 1.0)) return graph_.add(Op::logical_or, condition, no);
    if (graph_.is_literal(no, 0.0)) return graph_.add(Op::logical_and, condition, yes);
  }
  return graph_.insert(node);
}

}  // namespace strobe::expression
