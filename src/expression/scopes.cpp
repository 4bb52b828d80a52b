// SPDX-License-Identifier: Apache-2.0
#include "expression/scopes.h"

#include <algorithm>
#include <numeric>

namespace strobe::expression {
namespace {

/// How an integer depends on q and k.
struct Dependence {
  double q = 0, k = 0;  // its coefficients where it is linear in both
  bool linear = true;
  bool diagonal = true;  // it depends on k - q alone, if on either
};

/// Of every node. Counted in the graph's order, as a node may be reached in very many ways.
std::vector<Dependence> dependences(const Graph& graph) {
  std::vector<Dependence> all(graph.size());
  for (std::size_t id = 0; id < graph.size(); ++id) {
    const Node& node = graph[static_cast<Id>(id)];
    Dependence& mine = all[id];
    const auto of = [&](int child) { return all[node.children[child]]; };
    if (node.op == Op::variable) {
      mine.q = node.which == static_cast<int>(Variable::q) ? 1.0 : 0.0;
      mine.k = node.which == static_cast<int>(Variable::k) ? 1.0 : 0.0;
    } else if (node.op == Op::negate) {
      mine = {.q = -of(0).q, .k = -of(0).k, .linear = of(0).linear};
    } else if (node.op == Op::add) {
      mine = {.q = of(0).q + of(1).q, .k = of(0).k + of(1).k, .linear = of(0).linear && of(1).linear};
    } else {
      mine.linear = std::ranges::all_of(
          node.inputs(), [&](Id child) { return all[child].linear && all[child].q == 0 && all[child].k == 0; });
    }
    mine.diagonal =
        (mine.linear && mine.q == -mine.k) ||
        (node.count > 0 && std::ranges::all_of(node.inputs(), [&](Id child) { return all[child].diagonal; }));
  }
  return all;
}

/// Instructions of an operation by itself, about.
int cost_of(const Node& node) {
  switch (node.op) {
    case Op::literal:
    case Op::variable:
    case Op::to_integer: return 0;
    case Op::load:
    case Op::exp:
    case Op::exp2:
    case Op::log:
    case Op::tanh:
    case Op::sigmoid:
    case Op::sin:
    case Op::cos: return 16;
    case Op::divide:
    case Op::floor_divide:
    case Op::remainder:
    case Op::sqrt:
    case Op::rsqrt: return 8;
    default: return 1;
  }
}

class Choice {
 public:
  Choice(const Graph& graph, std::span<const Id> roots) : graph_(graph), scopes_(scopes_of(graph)) {
    std::vector<bool> wanted(graph.size(), false);
    for (const Id root : roots) wanted[root] = true;
    for (std::size_t at = graph.size(); at-- > 0;) {
      const Id id = static_cast<Id>(at);
      if (!wanted[id]) continue;
      if (scopes_[id] != Scope::pair && cost(id) >= least_cost(scopes_[id])) {
        list_of(scopes_[id]).push_back(id);
        continue;
      }
      for (const Id child : graph[id].inputs()) wanted[child] = true;
    }
    limit(kept_.tile, kMostTileValues);
    limit(kept_.query, kMostLineValues);
    limit(kept_.key, kMostLineValues);
    limit(kept_.diagonal, kMostDiagonalValues);
  }

  KeptValues kept() && { return std::move(kept_); }

 private:
  /// Reading a value takes as long as a few instructions; a diagonal's is another word for each pair, and a slope times
  /// the distance is found sooner.
  static int least_cost(Scope scope) { return scope == Scope::diagonal ? 8 : 4; }

  std::vector<Id>& list_of(Scope scope) {
    switch (scope) {
      case Scope::tile: return kept_.tile;
      case Scope::query: return kept_.query;
      case Scope::key: return kept_.key;
      default: return kept_.diagonal;
    }
  }

  /// Of what `root` does itself: values of a tile may be kept, too.
  int cost(Id root) const {
    int sum = 0;
    for (const Id id : reachable(graph_, std::span(&root, 1))) {
      if (scopes_[id] == scopes_[root] || scopes_[id] != Scope::tile) sum += cost_of(graph_[id]);
    }
    return sum;
  }

  void limit(std::vector<Id>& list, std::size_t most) const {
    if (list.size() > most) {
      std::ranges::stable_sort(list, [&](Id a, Id b) { return cost(a) > cost(b); });
      list.resize(most);
    }
    std::ranges::sort(list);
  }

  const Graph& graph_;
  std::vector<Scope> scopes_;
  KeptValues kept_;
};

}  // namespace

std::vector<Scope> scopes_of(const Graph& graph) {
  const std::vector<Variables> variables = dependencies(graph);
  const std::vector<Dependence> pairs = dependences(graph);
  std::vector<Scope> scopes(graph.size());
  for (std::size_t id = 0; id < graph.size(); ++id) {
    const auto reads = [&](Variable variable) { return (variables[id] & bit(variable)) != 0; };
    scopes[id] = reads(Variable::score)                       ? Scope::pair
                 : !reads(Variable::q) && !reads(Variable::k) ? Scope::tile
                 : !reads(Variable::k)                        ? Scope::query
                 : !reads(Variable::q)                        ? Scope::key
                 : pairs[id].diagonal                         ? Scope::diagonal
                                                              : Scope::pair;
  }
  return scopes;
}

KeptValues kept_values(const Graph& graph, std::span<const Id> roots) { return Choice(graph, roots).kept(); }

int cost_of_pair(const Graph& graph, std::span<const Id> roots, std::span<const Id> kept) {
  const std::vector<Id> ids = reachable(graph, roots, kept);
  return std::accumulate(ids.begin(), ids.end(), 0, [&](int sum, Id id) {
    return sum + (std::ranges::find(kept, id) != kept.end() ? 0 : cost_of(graph[id]));
  });
}

}  // namespace strobe::expression
