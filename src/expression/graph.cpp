// SPDX-License-Identifier: Apache-2.0
#include "expression/graph.h"

#include <algorithm>
#include <bit>

#include "expression/simplify.h"

namespace strobe::expression {
namespace {

std::uint64_t mixed(std::uint64_t hash, std::uint64_t more) {
  hash = (hash ^ more) * 0x9E3779B97F4A7C15U;
  return hash ^ hash >> 29U;
}

}  // namespace

bool is_commutative(Op op) {
  switch (op) {
    case Op::add:
    case Op::multiply:
    case Op::equal:
    case Op::logical_and:
    case Op::logical_or: return true;
    default: return false;  // minimum and maximum say which of two equal or incomparable operands they are
  }
}

Type result_type(Op op, Type operand) {
  switch (op) {
    case Op::to_integer: return Type::integer;
    case Op::to_real: return Type::real;
    case Op::less:
    case Op::less_equal:
    case Op::equal:
    case Op::logical_and:
    case Op::logical_or:
    case Op::logical_not: return Type::boolean;
    default: return operand;
  }
}

Id Graph::insert(const Node& node) {
  std::uint64_t hash = mixed(static_cast<std::uint64_t>(node.op), static_cast<std::uint64_t>(node.type));
  hash = mixed(hash, node.which);
  hash = mixed(hash, std::bit_cast<std::uint64_t>(node.value));
  for (const Id child : node.inputs()) hash = mixed(hash, hashes_[child]);
  for (auto [at, end] = by_hash_.equal_range(hash); at != end; ++at) {
    if (nodes_[at->second] == node) return at->second;
  }
  const Id id = static_cast<Id>(nodes_.size());
  nodes_.push_back(node);
  hashes_.push_back(hash);
  by_hash_.emplace(hash, id);
  return id;
}

Id Graph::literal(Type type, double value) {
  return insert({.op = Op::literal, .type = type, .value = value == 0.0 ? 0.0 : value});
}

Id Graph::variable(Variable variable) {
  return insert({.op = Op::variable,
                 .type = variable == Variable::score ? Type::real : Type::integer,
                 .which = static_cast<std::uint8_t>(variable)});
}

Id Graph::load(int capture, Type type, std::span<const Id> indices) {
  Node node{.op = Op::load,
            .type = type,
            .count = static_cast<std::uint8_t>(indices.size()),
            .which = static_cast<std::uint8_t>(capture)};
  std::ranges::copy(indices, node.children.begin());
  return insert(node);
}

Id Graph::add(Op op, Id a) {
  const Node node{.op = op, .type = result_type(op, nodes_[a].type), .count = 1, .children = {a}};
  return simplified_ ? Simplify(*this).unary(node) : insert(node);
}

Id Graph::add(Op op, Id a, Id b) {
  if (simplified_ && is_commutative(op) && hashes_[b] < hashes_[a]) std::swap(a, b);
  const Node node{.op = op, .type = result_type(op, nodes_[a].type), .count = 2, .children = {a, b}};
  return simplified_ ? Simplify(*this).binary(node) : insert(node);
}

Id Graph::select(Id condition, Id yes, Id no) {
  const Node node{.op = Op::select, .type = nodes_[yes].type, .count = 3, .children = {condition, yes, no}};
  return simplified_ ? Simplify(*this).select(node) : insert(node);
}

std::vector<Id> reachable(const Graph& graph, std::span<const Id> roots, std::span<const Id> kept) {
  std::vector<bool> needed(graph.size(), false);
  for (const Id root : roots) needed[root] = true;
  for (std::size_t id = graph.size(); id-- > 0;) {
    if (!needed[id] || std::ranges::find(kept, static_cast<Id>(id)) != kept.end()) continue;
    for (const Id child : graph[static_cast<Id>(id)].inputs()) needed[child] = true;
  }
  std::vector<Id> ids;
  for (std::size_t id = 0; id < graph.size(); ++id) {
    if (needed[id]) ids.push_back(static_cast<Id>(id));
  }
  return ids;
}

std::vector<Variables> dependencies(const Graph& graph) {
  std::vector<Variables> all(graph.size(), 0);
  for (std::size_t id = 0; id < graph.size(); ++id) {
    const Node& node = graph[static_cast<Id>(id)];
    if (node.op == Op::variable) all[id] = bit(static_cast<Variable>(node.which));
    for (const Id child : node.inputs()) all[id] |= all[child];
  }
  return all;
}

}  // namespace strobe::expression
