// SPDX-License-Identifier: Apache-2.0
#include "call/text_options.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "expression/formula.h"

namespace strobe {
namespace {

using expression::Graph;
using expression::Id;
using expression::Node;
using expression::Op;
using expression::Variable;

/// An integer that is a sum: of multiples of a query's and a key's position and of the lengths, and of a constant.
struct Sum {
  std::int64_t q = 0, k = 0, q_len = 0, k_len = 0, constant = 0;

  Sum times(std::int64_t factor) const {
    return {q * factor, k * factor, q_len * factor, k_len * factor, constant * factor};
  }
  Sum plus(const Sum& other) const {
    return {q + other.q, k + other.k, q_len + other.q_len, k_len + other.k_len, constant + other.constant};
  }
};

std::optional<Sum> sum_of_variable(const Node& node) {
  switch (static_cast<Variable>(node.which)) {
    case Variable::q: return Sum{.q = 1};
    case Variable::k: return Sum{.k = 1};
    case Variable::q_len: return Sum{.q_len = 1};
    case Variable::k_len: return Sum{.k_len = 1};
    default: return std::nullopt;
  }
}

/// Constants are small enough for no sum of a text's length to wrap around.
std::optional<Sum> sum_of(const Graph& graph, Id id) {
  constexpr double kMostConstant = 1 << 20;
  const Node& node = graph[id];
  const auto of = [&](std::size_t i) { return sum_of(graph, node.children[i]); };
  switch (node.op) {
    case Op::literal:
      if (node.value > kMostConstant || node.value < -kMostConstant) return std::nullopt;
      return Sum{.constant = static_cast<std::int64_t>(node.value)};
    case Op::variable: return sum_of_variable(node);
    case Op::negate: {
      const std::optional<Sum> x = of(0);
      return x ? std::optional(x->times(-1)) : std::nullopt;
    }
    case Op::add: {
      const std::optional<Sum> x = of(0);
      const std::optional<Sum> y = of(1);
      return x && y ? std::optional(x->plus(*y)) : std::nullopt;
    }
    default: return std::nullopt;
  }
}

/// What a mask says of a key relative to its query's position, or to the position's center: left and right as a
/// Window's, -1 unbounded.
struct Bounds {
  Window from_query, from_center;

  static void limit(std::int64_t& side, std::int64_t keys) { side = side < 0 ? keys : std::min(side, keys); }

  /// Where `sum` <= 0 is such a limit.
  bool take(const Sum& sum) {
    const std::int64_t sign = sum.k;
    if ((sign != 1 && sign != -1) || sum.q != -sign || sum.constant * -1 < 0) return false;
    const bool centered = sum.k_len == -sign && sum.q_len == sign;
    if (!centered && (sum.k_len != 0 || sum.q_len != 0)) return false;
    Window& window = centered ? from_center : from_query;
    limit(sign > 0 ? window.right : window.left, -sum.constant);
    return true;
  }
};

/// Takes the limits among what must hold for a key to be seen. Whether they are all that a mask says.
bool find_bounds(const Graph& graph, Id id, Bounds& bounds) {
  const Node& node = graph[id];
  if (node.op == Op::logical_and) {
    const bool first = find_bounds(graph, node.children[0], bounds);
    return find_bounds(graph, node.children[1], bounds) && first;
  }
  bool is_not = false;
  const Node* comparison = &node;
  if (node.op == Op::logical_not) {
    is_not = true;
    comparison = &graph[node.children[0]];
  }
  if (comparison->op != Op::less && comparison->op != Op::less_equal) return false;
  if (graph[comparison->children[0]].type != expression::Type::integer) return false;
  const std::optional<Sum> low = sum_of(graph, comparison->children[0]);
  const std::optional<Sum> high = sum_of(graph, comparison->children[1]);
  if (!low || !high) return false;
  // low <= high: low - high <= 0. Not that: high < low, which is high - low + 1 <= 0.
  Sum sum = is_not ? high->plus(low->times(-1)) : low->plus(high->times(-1));
  if (is_not == (comparison->op == Op::less_equal)) ++sum.constant;
  return bounds.take(sum);
}

bool lengths_are_equal(const AttentionProblem& problem) {
  return problem.seqlen_q == problem.seqlen_k && !problem.packed_q && !problem.packed_k && !problem.has_seqused_q &&
         !problem.has_seqused_k && !problem.has_leftpad_k && problem.page_size == 0;
}

bool is_open(const Window& window) { return window.left < 0 && window.right < 0; }

/// Sets the options that hide what the bounds do; false where there are none.
bool set_options(const Bounds& bounds, AttentionProblem& problem) {
  Window window = bounds.from_center;
  const bool from_query = !is_open(bounds.from_query);
  if (from_query && !lengths_are_equal(problem)) {
    if (!is_open(bounds.from_center) || bounds.from_query.right != 0) return false;
    problem.causal = CausalMask::top_left;
    problem.window = {.left = bounds.from_query.left, .right = -1};
    return true;
  }
  if (bounds.from_query.left >= 0) Bounds::limit(window.left, bounds.from_query.left);
  if (bounds.from_query.right >= 0) Bounds::limit(window.right, bounds.from_query.right);
  if (window.right == 0) {
    problem.causal = CausalMask::bottom_right;
    window.right = -1;
  }
  problem.window = window;
  return true;
}

/// The factor of a product with a literal, and the other factor.
struct Product {
  double factor;
  Id other;
};

std::optional<Product> product_of(const Graph& graph, Id id) {
  const Node& node = graph[id];
  if (node.op != Op::multiply) return std::nullopt;
  for (const std::size_t i : {0U, 1U}) {
    if (graph.is_literal(node.children[i])) return Product{graph[node.children[i]].value, node.children[1 - i]};
  }
  return std::nullopt;
}

/// c of `c * tanh(score / c)`; 0 of other scores.
float softcap_of(const expression::Formula& formula) {
  constexpr double kNearOne = 1e-6;
  const Graph& graph = formula.graph();
  const std::optional<Product> outer = product_of(graph, formula.score());
  if (!outer || graph[outer->other].op != Op::tanh) return 0.0F;
  const std::optional<Product> inner = product_of(graph, graph[outer->other].children[0]);
  if (!inner || std::abs(inner->factor * outer->factor - 1.0) > kNearOne || outer->factor <= 0.0) return 0.0F;
  const Node& score = graph[inner->other];
  const bool is_score = score.op == Op::variable && static_cast<Variable>(score.which) == Variable::score;
  return is_score ? static_cast<float>(outer->factor) : 0.0F;
}

/// Whether the text has a mask, and no option says which keys a query sees.
bool has_mask_alone(const AttentionProblem& problem) {
  if (!problem.expression.formula->has_mask() || problem.expression.mask_is_option) return false;
  const bool has_others = problem.causal != CausalMask::none || !is_open(problem.window) || problem.chunk != 0;
  return !has_others && !problem.has_offsets && !problem.has_tree_mask;
}

AttentionProblem with_built_in_mask(AttentionProblem problem) {
  if (!has_mask_alone(problem)) return problem;
  const expression::Formula& formula = *problem.expression.formula;
  Bounds bounds;
  if (!find_bounds(formula.graph(), formula.mask(), bounds) || !set_options(bounds, problem)) return problem;
  problem.expression.mask_is_option = true;
  return problem;
}

AttentionProblem with_built_in_score(AttentionProblem problem) {
  if (!problem.expression.formula->has_score() || problem.softcap != 0.0F) return problem;
  if (problem.modifiers.has_bias || problem.modifiers.has_alibi) return problem;  // which come after a softcap
  problem.softcap = softcap_of(*problem.expression.formula);
  problem.expression.score_is_option = problem.softcap != 0.0F;
  return problem;
}

}  // namespace

AttentionProblem with_built_in_options(AttentionProblem problem) {
  if (!problem.expression.given()) return problem;
  problem = with_built_in_score(with_built_in_mask(std::move(problem)));
  const ExpressionShape& shape = problem.expression;
  const bool has_score = shape.formula->has_score() && !shape.score_is_option;
  const bool has_mask = shape.formula->has_mask() && !shape.mask_is_option;
  if (!has_score && !has_mask) problem.expression = {};
  return problem;
}

AttentionProblem with_implied_options(AttentionProblem problem) {
  if (!problem.expression.given() || !has_mask_alone(problem)) return problem;
  const expression::Formula& formula = *problem.expression.formula;
  Bounds bounds;
  find_bounds(formula.graph(), formula.mask(), bounds);
  set_options(bounds, problem);
  return problem;
}

}  // namespace strobe
