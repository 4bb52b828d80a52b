// SPDX-License-Identifier: Apache-2.0
#include "expression/derivative.h"

#include <numbers>
#include <optional>
#include <utility>

namespace strobe::expression {
namespace {

class Differentiate {
 public:
  Differentiate(Graph& graph, Id root) : graph_(graph), adjoints_(root + 1) { adjoints_[root] = graph.real(1.0); }

  Adjoints all() {
    Adjoints found{.score = graph_.real(0.0), .loads = {}};
    for (std::size_t at = adjoints_.size(); at-- > 0;) {
      const Id id = static_cast<Id>(at);
      const std::optional<Id> adjoint = adjoints_[at];
      if (!adjoint || graph_.is_literal(*adjoint, 0.0)) continue;
      const Node node = graph_[id];  // a copy: the graph grows
      if (node.op == Op::variable && node.which == static_cast<int>(Variable::score)) found.score = *adjoint;
      if (node.op == Op::load && node.type == Type::real) found.loads.push_back({id, *adjoint});
      if (node.type == Type::real) visit(id, node, *adjoint);
    }
    return found;
  }

 private:
  /// Adds to the adjoint of a real child; integers and booleans have none.
  void give(Id child, Id adjoint) {
    if (graph_[child].type != Type::real) return;
    std::optional<Id>& sum = adjoints_[child];
    sum = sum ? plus(*sum, adjoint) : adjoint;
  }

  /// Whether `id` is 0 unless its condition holds (`branch` 1), or unless it does not (2).
  bool is_branch(Id id, int branch) const {
    const Node& node = graph_[id];
    return node.op == Op::select && graph_.is_literal(node.children[3 - branch], 0.0);
  }

  /// The sum of what two branches of one condition contribute is a choice between them.
  Id plus(Id a, Id b) {
    for (const auto& [one, other] : {std::pair(a, b), std::pair(b, a)}) {
      if (!is_branch(one, 1) || !is_branch(other, 2)) continue;
      if (graph_[one].children[0] != graph_[other].children[0]) continue;
      return graph_.select(graph_[one].children[0], graph_[one].children[1], graph_[other].children[2]);
    }
    return graph_.add(Op::add, a, b);
  }

  /// adjoint * factor or adjoint / factor. The factor goes into a branch, so that one that is not taken stays 0 though
  /// the factor is infinite there.
  Id scaled(Op op, Id adjoint, Id factor) {
    for (const int branch : {1, 2}) {
      if (!is_branch(adjoint, branch)) continue;
      const Node node = graph_[adjoint];
      const Id inner = scaled(op, node.children[branch], factor);
      const Id zero = graph_.real(0.0);
      return graph_.select(node.children[0], branch == 1 ? inner : zero, branch == 1 ? zero : inner);
    }
    return graph_.add(op, adjoint, factor);
  }
  Id times(Id adjoint, Id factor) { return scaled(Op::multiply, adjoint, factor); }
  Id times(Id adjoint, double factor) { return times(adjoint, graph_.real(factor)); }

  void choose(Id condition, Id yes, Id no, Id adjoint) {
    const Id zero = graph_.real(0.0);
    give(yes, graph_.select(condition, adjoint, zero));
    give(no, graph_.select(condition, zero, adjoint));
  }

  Id sign_of(Id x) {
    const Id zero = graph_.real(0.0);
    const Id positive = graph_.select(graph_.add(Op::less, zero, x), graph_.real(1.0), zero);
    return graph_.select(graph_.add(Op::less, x, zero), graph_.real(-1.0), positive);
  }

  Id one_less(Id x) { return graph_.subtract(graph_.real(1.0), x); }

  void visit(Id id, const Node& node, Id adjoint) {
    const auto [a, b, c] = std::tuple(node.children[0], node.children[1], node.children[2]);
    switch (node.op) {
      case Op::negate: return give(a, times(adjoint, -1.0));
      case Op::add: give(a, adjoint); return give(b, adjoint);
      case Op::multiply: give(a, times(adjoint, b)); return give(b, times(adjoint, a));
      case Op::divide:
        give(a, scaled(Op::divide, adjoint, b));
        return give(b, scaled(Op::divide, times(adjoint, graph_.add(Op::negate, id)), b));
      case Op::minimum: return choose(graph_.add(Op::less, b, a), b, a, adjoint);
      case Op::maximum: return choose(graph_.add(Op::less, a, b), b, a, adjoint);
      case Op::select: return choose(a, b, c, adjoint);
      default: return give(a, function_adjoint(id, node, adjoint));
    }
  }

  /// Of functions of one argument; 0 of those that are constant almost everywhere.
  Id function_adjoint(Id id, const Node& node, Id adjoint) {
    const Id x = node.children[0];
    switch (node.op) {
      case Op::absolute: return times(adjoint, sign_of(x));
      case Op::exp: return times(adjoint, id);
      case Op::exp2: return times(times(adjoint, id), std::numbers::ln2);
      case Op::log: return scaled(Op::divide, adjoint, x);
      case Op::tanh: return times(adjoint, one_less(graph_.add(Op::multiply, id, id)));
      case Op::sigmoid: return times(adjoint, graph_.add(Op::multiply, id, one_less(id)));
      case Op::sqrt: return scaled(Op::divide, times(adjoint, 0.5), id);
      case Op::rsqrt:
        return times(times(adjoint, graph_.add(Op::multiply, id, graph_.add(Op::multiply, id, id))), -0.5);
      case Op::sin: return times(adjoint, graph_.add(Op::cos, x));
      case Op::cos: return times(adjoint, graph_.add(Op::negate, graph_.add(Op::sin, x)));
      default: return graph_.real(0.0);
    }
  }

  Graph& graph_;
  std::vector<std::optional<Id>> adjoints_;
};

}  // namespace

Adjoints differentiate(Graph& graph, Id root) { return Differentiate(graph, root).all(); }

}  // namespace strobe::expression
