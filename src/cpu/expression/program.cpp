// SPDX-License-Identifier: Apache-2.0
#include "cpu/expression/program.h"

#include <map>
#include <optional>
#include <utility>

namespace strobe::cpu {
namespace {

using expression::Graph;
using expression::Id;
using expression::Node;
using expression::Op;
using expression::Variable;

Extent united(Extent a, Extent b) {
  if (a == b || b == Extent::one) return a;
  return a == Extent::one ? b : Extent::all;
}

Extent extent_of(Variable variable, PanelOrder order) {
  const bool queries_across = order == PanelOrder::queries_across;
  switch (variable) {
    case Variable::score: return Extent::all;
    case Variable::q:
    case Variable::head: return queries_across ? Extent::across : Extent::along;
    case Variable::k: return queries_across ? Extent::along : Extent::across;
    default: return Extent::one;
  }
}

class Compile {
 public:
  Compile(const Graph& graph, std::span<const Id> roots, ExpressionProgram& program)
      : graph_(graph), program_(program), extents_(graph.size(), Extent::one), slots_(graph.size(), -1) {
    const std::vector<Id> ids = expression::reachable(graph, roots);
    for (const Id id : ids) add(id);
    for (const Id root : roots) program.roots.push_back(expanded(root, Extent::all));
  }

 private:
  void add(Id id) {
    const Node& node = graph_[id];
    Extent extent = Extent::one;
    if (node.op == Op::variable) extent = extent_of(static_cast<Variable>(node.which), program_.order);
    for (const Id child : node.inputs()) extent = united(extent, extents_[child]);
    ExpressionStep step{.op = node.op,
                        .type = node.type,
                        .extent = extent,
                        .which = node.which,
                        .count = node.count,
                        .value = node.value};
    if (node.count > 0) step.operand_type = graph_[node.children[node.count - 1]].type;
    for (std::size_t i = 0; i < node.count; ++i) step.operands[i] = expanded(node.children[i], extent);
    extents_[id] = extent;
    slots_[id] = push(step);
  }

  /// The node's slot with an element for each of `extent`.
  int expanded(Id id, Extent extent) {
    const Extent from = extents_[id];
    if (from == extent) return slots_[id];
    std::optional<int>& slot = expanded_[{id, extent}];
    if (!slot) {
      slot = push({.type = graph_[id].type,
                   .extent = extent,
                   .expands = true,
                   .from = from,
                   .count = 1,
                   .operands = {slots_[id]}});
    }
    return *slot;
  }

  /// What does not vary along the rows is done once a panel, and so is its expansion.
  int push(ExpressionStep step) {
    const bool varies_along = step.expands ? step.from == Extent::along || step.from == Extent::all
                                           : step.extent == Extent::along || step.extent == Extent::all;
    step.result = program_.slots++;
    (varies_along ? program_.steps : program_.once).push_back(step);
    return step.result;
  }

  const Graph& graph_;
  ExpressionProgram& program_;
  std::vector<Extent> extents_;
  std::vector<int> slots_;
  std::map<std::pair<Id, Extent>, std::optional<int>> expanded_;
};

}  // namespace

ExpressionProgram::ExpressionProgram(const Graph& graph, std::span<const Id> of, PanelOrder panel_order)
    : order(panel_order) {
  Compile(graph, of, *this);
}

}  // namespace strobe::cpu
