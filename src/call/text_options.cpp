// SPDX-License-Identifier: Apache-2.0
#include "call/text_options.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "expression/formula.h"
#include "expression/position_sum.h"

namespace strobe {
namespace {

using expression::CapturedTensor;
using expression::Graph;
using expression::Id;
using expression::Node;
using expression::Op;
using expression::PositionSum;
using expression::ScoreTerms;

/// What a mask says of a key relative to its query's position, or to the position's center: left and right as a
/// Window's, -1 unbounded.
struct Bounds {
  Window from_query, from_center;

  static void limit(std::int64_t& side, std::int64_t keys) { side = side < 0 ? keys : std::min(side, keys); }

  /// Where `sum` <= 0 is such a limit.
  bool take(const PositionSum& sum) {
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
  const std::optional<PositionSum> low = expression::position_sum(graph, comparison->children[0]);
  const std::optional<PositionSum> high = expression::position_sum(graph, comparison->children[1]);
  if (!low || !high) return false;
  // low <= high: low - high <= 0. Not that: high < low, which is high - low + 1 <= 0.
  PositionSum sum = is_not ? high->plus(low->times(-1)) : low->plus(high->times(-1));
  if (is_not == (comparison->op == Op::less_equal)) ++sum.constant;
  return bounds.take(sum);
}

bool lengths_are_equal(const AttentionProblem& problem) {
  return problem.seqlen_q == problem.seqlen_k && !problem.packed_q && !problem.packed_k && !problem.has_seqused_q &&
         !problem.has_seqused_k && !problem.has_leftpad_k && problem.page_size == 0;
}

/// Whether the call has slopes of its own: distances count from the center, which moves with a top-left causal mask.
bool has_own_slopes(const AttentionProblem& problem) {
  if (!problem.modifiers.has_alibi) return false;
  return !problem.expression.score_is_option || !problem.expression.formula->score_terms()->slopes.given();
}

bool is_open(const Window& window) { return window.left < 0 && window.right < 0; }

/// Sets the options that hide what the bounds do; false where there are none.
bool set_options(const Bounds& bounds, AttentionProblem& problem) {
  Window window = bounds.from_center;
  const bool from_query = !is_open(bounds.from_query);
  if (from_query && !lengths_are_equal(problem)) {
    if (!is_open(bounds.from_center) || bounds.from_query.right != 0 || has_own_slopes(problem)) return false;
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

/// With the causal mask or window that a part of the mask's text says.
AttentionProblem with_implied_mask(AttentionProblem problem) {
  if (!has_mask_alone(problem)) return problem;
  const expression::Formula& formula = *problem.expression.formula;
  Bounds bounds;
  find_bounds(formula.graph(), formula.mask(), bounds);
  set_options(bounds, problem);
  return problem;
}

/// Where a call's own bias and slopes mean, and are allowed, what they do in a text. A text has the same bits in every
/// batch where it says the same, which need not be a text that an option says.
bool takes_captures(const AttentionProblem& problem) {
  const bool row_invariant = problem.pass == Pass::forward && problem.row_invariant;
  return !problem.has_offsets && !problem.has_tree_mask && !problem.eight_bit.given() && !row_invariant;
}

/// Of plain sequences: others have no bias, or few kernels have them with one. With dropout of float32 it takes
/// registers that wide heads lack.
bool takes_bias(const AttentionProblem& problem) {
  const bool packed = problem.packed_q || problem.packed_k;
  const bool cached = problem.page_size != 0 || problem.has_leftpad_k || problem.has_cache_batch_idx;
  const bool dropped = problem.dropout != 0.0F && problem.dtype == DType::float32;
  return problem.expression.bias_fits && !problem.modifiers.has_bias && takes_captures(problem) && !packed && !cached &&
         !problem.stored.given() && !problem.has_qv && !dropped;
}

bool wants_gradient(const AttentionProblem& problem, const CapturedTensor& tensor) {
  return (problem.expression.gradients >> tensor.capture & 1U) != 0;
}

/// Where the distance is ALiBi's, of every key that is seen. There is no gradient of slopes.
bool takes_slopes(const AttentionProblem& problem, const ScoreTerms& terms) {
  if (!problem.expression.slopes_fit || problem.modifiers.has_alibi || !takes_captures(problem)) return false;
  if (wants_gradient(problem, terms.slopes)) return false;
  const AttentionProblem seen = with_implied_mask(problem);
  const bool from_query = seen.causal == CausalMask::top_left;  // else from the center
  if (terms.distance_to_center == from_query && !lengths_are_equal(problem)) return false;
  return terms.both_sides || seen.causal != CausalMask::none || seen.window.right == 0;
}

/// All that the score's text says, where options say it; the mask's text must be an option already if it is to be one.
std::optional<ScoreTerms> built_in_terms(const AttentionProblem& problem) {
  if (!problem.expression.given()) return std::nullopt;
  const std::optional<ScoreTerms>& terms = problem.expression.formula->score_terms();
  if (!terms) return std::nullopt;
  const ModifierShape& modifiers = problem.modifiers;
  if (terms->softcap != 0.0F) {
    // The call's own bias and slopes come after a softcap.
    if (problem.softcap != 0.0F || modifiers.has_bias || modifiers.has_alibi) return std::nullopt;
  }
  if (terms->bias.given() && !takes_bias(problem)) return std::nullopt;
  if (terms->slopes.given() && !takes_slopes(problem, *terms)) return std::nullopt;
  return terms;
}

AttentionProblem with_built_in_score(AttentionProblem problem) {
  const std::optional<ScoreTerms> terms = built_in_terms(problem);
  if (!terms) return problem;
  ModifierShape& modifiers = problem.modifiers;
  if (terms->softcap != 0.0F) problem.softcap = terms->softcap;
  if (terms->bias.given()) {
    modifiers.has_bias = true;
    modifiers.bias_dtype = problem.expression.formula->captures()[static_cast<std::size_t>(terms->bias.capture)].dtype;
    modifiers.bias_per_batch = terms->bias.batch >= 0 && problem.batch != 1;
    modifiers.bias_per_head = terms->bias.head >= 0 && problem.heads_q != 1;
    problem.wants_d_bias = wants_gradient(problem, terms->bias);
  }
  if (terms->slopes.given()) {
    modifiers.has_alibi = true;
    modifiers.alibi_per_batch = terms->slopes.batch >= 0;
  }
  problem.expression.score_is_option = true;
  problem.expression.gradients = 0;
  problem.expression.gradient_elements = 0;
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
  return problem.expression.given() ? with_implied_mask(std::move(problem)) : problem;
}

ScoreTerms captured_options(const AttentionProblem& problem) {
  if (!problem.expression.given()) return {};
  return built_in_terms(with_built_in_mask(problem)).value_or(ScoreTerms{});
}

bool covers(const CapturedTensor& tensor, const AttentionProblem& problem, const ConstTensorView& capture,
            bool exactly) {
  std::array<std::int64_t, kMaxRank> read;
  read.fill(1);  // of an axis with index 0
  for (const auto& [axis, extent] : {std::pair{tensor.batch, problem.batch}, std::pair{tensor.head, problem.heads_q},
                                     std::pair{tensor.q, problem.seqlen_q}, std::pair{tensor.k, problem.seqlen_k}}) {
    if (axis >= 0) read[static_cast<std::size_t>(axis)] = extent;
  }
  const auto fits = [&](std::int64_t extent, std::int64_t wanted) {
    return exactly ? extent == wanted : extent >= wanted;
  };
  return std::equal(capture.shape.begin(), capture.shape.begin() + tensor.rank, read.begin(), fits);
}

}  // namespace strobe
