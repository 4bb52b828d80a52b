// SPDX-License-Identifier: Apache-2.0
#include "expression/position_sum.h"

#include <cstddef>

namespace strobe::expression {
namespace {

std::optional<PositionSum> sum_of_variable(const Node& node) {
  switch (static_cast<Variable>(node.which)) {
    case Variable::q: return PositionSum{.q = 1};
    case Variable::k: return PositionSum{.k = 1};
    case Variable::q_len: return PositionSum{.q_len = 1};
    case Variable::k_len: return PositionSum{.k_len = 1};
    default: return std::nullopt;
  }
}

}  // namespace

std::optional<PositionSum> position_sum(const Graph& graph, Id id) {
  constexpr double kMostConstant = 1 << 20;
  const Node& node = graph[id];
  if (node.type != Type::integer) return std::nullopt;
  const auto of = [&](std::size_t i) { return position_sum(graph, node.children[i]); };
  switch (node.op) {
    case Op::literal:
      if (node.value > kMostConstant || node.value < -kMostConstant) return std::nullopt;
      return PositionSum{.constant = static_cast<std::int64_t>(node.value)};
    case Op::variable: return sum_of_variable(node);
    case Op::negate: {
      const std::optional<PositionSum> x = of(0);
      return x ? std::optional(x->times(-1)) : std::nullopt;
    }
    case Op::add: {
      const std::optional<PositionSum> x = of(0);
      const std::optional<PositionSum> y = of(1);
      return x && y ? std::optional(x->plus(*y)) : std::nullopt;
    }
    default: return std::nullopt;
  }
}

}  // namespace strobe::expression
