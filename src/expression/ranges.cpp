// SPDX-License-Identifier: Apache-2.0
#include "expression/ranges.h"

#include <vector>

namespace strobe::expression {
namespace {

Range range_of(const Node& node, std::span<const Range> x) {
  switch (node.op) {
    case Op::negate: return negate(x[0]);
    case Op::add: return add(x[0], x[1]);
    case Op::multiply: return multiply(x[0], x[1]);
    case Op::floor_divide: return floor_divide(x[0], x[1]);
    case Op::remainder: return remainder(x[0], x[1]);
    case Op::minimum: return minimum(x[0], x[1]);
    case Op::maximum: return maximum(x[0], x[1]);
    case Op::absolute: return absolute(x[0]);
    case Op::less: return less(x[0], x[1]);
    case Op::less_equal: return less_equal(x[0], x[1]);
    case Op::equal: return equal(x[0], x[1]);
    case Op::logical_and: return logical_and(x[0], x[1]);
    case Op::logical_or: return logical_or(x[0], x[1]);
    case Op::logical_not: return logical_not(x[0]);
    case Op::select: return select(x[0], x[1], x[2]);
    default: return any_of(node.type);
  }
}

}  // namespace

Range any_of(Type type) { return type == Type::boolean ? any_boolean() : any_integer(); }

Range range_of(const Graph& graph, std::span<const Id> ids, Id root, const TileRanges& tile) {
  std::vector<Range> ranges(graph.size());
  for (const Id id : ids) {
    const Node& node = graph[id];
    std::array<Range, kMostChildren> operands{};
    bool reals = node.type == Type::real;
    for (std::size_t i = 0; i < node.count; ++i) {
      operands[i] = ranges[node.children[i]];
      reals = reals || graph[node.children[i]].type == Type::real;
    }
    const std::span<const Range> x(operands.data(), node.count);
    if (reals) {
      ranges[id] = any_of(node.type);
    } else if (node.op == Op::literal) {
      ranges[id] = just(static_cast<long long>(node.value));
    } else if (node.op == Op::variable) {
      ranges[id] = tile.variables[node.which];
    } else if (node.op == Op::load) {
      ranges[id] = tile.load ? tile.load(node.which, x) : any_of(node.type);
    } else {
      ranges[id] = range_of(node, x);
    }
  }
  return ranges[root];
}

}  // namespace strobe::expression
