// SPDX-License-Identifier: Apache-2.0
#include "expression/score_terms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "expression/position_sum.h"

namespace strobe::expression {
namespace {

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

bool is_variable(const Node& node, Variable variable) {
  return node.op == Op::variable && static_cast<Variable>(node.which) == variable;
}

/// c of `c * tanh(score / c)`; 0 of others.
float softcap_of(const Graph& graph, Id id) {
  constexpr double kNearOne = 1e-6;
  const std::optional<Product> outer = product_of(graph, id);
  if (!outer || graph[outer->other].op != Op::tanh) return 0.0F;
  const std::optional<Product> inner = product_of(graph, graph[outer->other].children[0]);
  if (!inner || std::abs(inner->factor * outer->factor - 1.0) > kNearOne || outer->factor <= 0.0) return 0.0F;
  return is_variable(graph[inner->other], Variable::score) ? static_cast<float>(outer->factor) : 0.0F;
}

/// None where another index than a variable of the call's axes, in their order, or 0 is among those of a load.
std::optional<CapturedTensor> captured_tensor(const Graph& graph, const Node& load) {
  CapturedTensor tensor{.capture = load.which, .rank = load.count};
  const std::array<std::pair<Variable, int*>, 4> wanted{std::pair{Variable::batch, &tensor.batch},
                                                        {Variable::head, &tensor.head},
                                                        {Variable::q, &tensor.q},
                                                        {Variable::k, &tensor.k}};
  auto next = wanted.begin();
  for (int axis = 0; axis < load.count; ++axis) {
    const Id index = load.children[static_cast<std::size_t>(axis)];
    if (graph.is_literal(index, 0.0)) continue;
    next = std::find_if(next, wanted.end(), [&](const auto& each) { return is_variable(graph[index], each.first); });
    if (next == wanted.end()) return std::nullopt;
    *next++->second = axis;
  }
  return tensor;
}

/// A node without the signs around it.
struct Signed {
  Id id;
  bool negative = false;
};

Signed without_sign(const Graph& graph, Signed value) {
  while (graph[value.id].op == Op::negate) value = {graph[value.id].children[0], !value.negative};
  return value;
}

/// Collects the terms of a sum, each at most once.
class Collector {
 public:
  explicit Collector(const Graph& graph) : graph_(graph) {}

  /// False where no option says it.
  bool take(Signed value) {
    value = without_sign(graph_, value);
    const Node& node = graph_[value.id];
    if (node.op == Op::add) {
      return take({node.children[0], value.negative}) && take({node.children[1], value.negative});
    }
    return take_score(value) || take_bias(value) || take_slopes(value);
  }

  std::optional<ScoreTerms> terms() const { return has_score_ ? std::optional(terms_) : std::nullopt; }

 private:
  bool take_score(const Signed& value) {
    const float softcap = softcap_of(graph_, value.id);
    const bool is_score = softcap != 0.0F || is_variable(graph_[value.id], Variable::score);
    if (!is_score || value.negative || has_score_) return false;
    has_score_ = true;
    terms_.softcap = softcap;
    return true;
  }

  bool take_bias(const Signed& value) {
    const Node& node = graph_[value.id];
    if (node.op != Op::load || value.negative || terms_.bias.given()) return false;
    const std::optional<CapturedTensor> bias = captured_tensor(graph_, node);
    if (!bias || bias->q < 0 || bias->k < 0) return false;
    terms_.bias = *bias;
    return true;
  }

  bool take_slopes(const Signed& value) {
    const Node& node = graph_[value.id];
    if (node.op != Op::multiply || terms_.slopes.given()) return false;
    return take_slopes(value.negative, node.children[0], node.children[1]) ||
           take_slopes(value.negative, node.children[1], node.children[0]);
  }

  bool take_slopes(bool negative, Id slopes, Id distance) {
    const Signed factor = without_sign(graph_, {slopes, negative});
    const Node& load = graph_[factor.id];
    if (load.op != Op::load) return false;
    const std::optional<CapturedTensor> tensor = captured_tensor(graph_, load);
    if (!tensor || tensor->head < 0 || tensor->q >= 0 || tensor->k >= 0) return false;
    if (!take_distance({distance, factor.negative})) return false;
    terms_.slopes = *tensor;
    return true;
  }

  /// `-abs(k - q)`, or `k - q`, which is the same of keys that are not on the right; or likewise by the center.
  bool take_distance(Signed value) {
    bool both_sides = false;
    for (bool is_wrapped = true; is_wrapped;) {
      if (!both_sides) value = without_sign(graph_, value);
      const Node& node = graph_[value.id];
      is_wrapped = node.op == Op::to_real || node.op == Op::absolute;
      both_sides = both_sides || node.op == Op::absolute;
      if (is_wrapped) value.id = node.children[0];
    }
    std::optional<PositionSum> sum = position_sum(graph_, value.id);
    if (!sum) return false;
    if (both_sides ? sum->k < 0 : value.negative) sum = sum->times(-1);
    if (both_sides && !value.negative) return false;
    terms_.both_sides = both_sides;
    terms_.distance_to_center = sum->k_len != 0;
    return sum == (terms_.distance_to_center ? PositionSum{.q = -1, .k = 1, .q_len = 1, .k_len = -1}
                                             : PositionSum{.q = -1, .k = 1});
  }

  const Graph& graph_;
  ScoreTerms terms_;
  bool has_score_ = false;
};

}  // namespace

std::optional<ScoreTerms> score_terms(const Graph& graph, Id score) {
  Collector collector(graph);
  return collector.take({score}) ? collector.terms() : std::nullopt;
}

}  // namespace strobe::expression
