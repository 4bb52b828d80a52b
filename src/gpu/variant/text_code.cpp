// SPDX-License-Identifier: Apache-2.0
#include "gpu/variant/text_code.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "expression/cuda.h"
#include "expression/formula.h"
#include "runtime/sha256.h"

namespace strobe::gpu {
namespace {

/// Code by what names it in a rule. Entries stay: rules are values that outlive calls.
class Codes {
 public:
  using Name = std::pair<int, int>;

  /// Printed once for a text: each new shape of a call asks again.
  Name name_of(const expression::Formula& formula, const expression::Parts& parts) {
    const std::scoped_lock lock(mutex_);
    const std::tuple key(formula.text(), parts.score, parts.mask);
    const auto known = names_.find(key);
    if (known != names_.end()) return known->second;
    return names_[key] = add(expression::device_code(formula, parts));
  }

  std::string find(const Name& name) {
    const std::scoped_lock lock(mutex_);
    const auto found = codes_.find(name);
    return found == codes_.end() ? std::string() : found->second;
  }

 private:
  Name add(const std::string& code) {
    runtime::Sha256 hash;
    hash.update_field(code);
    const auto digest = hash.finish();
    const auto bits = [&](std::size_t first) {
      std::uint32_t word = 0;
      for (std::size_t i = 0; i < 4; ++i) word = word << 8U | static_cast<std::uint8_t>(digest[first + i]);
      return static_cast<int>(word >> 1U);  // template arguments print without a sign
    };
    const Name name{bits(0), bits(4)};
    codes_.try_emplace(name, code);  // of so many bits of SHA-256, other code has another name
    return name;
  }

  std::mutex mutex_;
  std::map<std::tuple<std::string, bool, bool>, Name> names_;  // by texts and which of them
  std::map<Name, std::string> codes_;
};

Codes& codes() {
  static Codes& all = *new Codes;
  return all;
}

using expression::Graph;
using expression::Id;
using expression::Node;
using expression::Op;

/// No value of the node, a real, is larger: of what is not followed, infinity.
double largest(const Graph& graph, const std::vector<double>& known, const Node& node) {
  const auto of = [&](int i) { return known[node.children[static_cast<std::size_t>(i)]]; };
  switch (node.op) {
    case Op::literal: return std::abs(node.value);
    case Op::tanh:
    case Op::sigmoid:
    case Op::sin:
    case Op::cos: return 1.0;
    case Op::negate:
    case Op::absolute: return of(0);
    case Op::add: return of(0) + of(1);
    case Op::multiply: return of(0) == 0.0 || of(1) == 0.0 ? 0.0 : of(0) * of(1);
    case Op::minimum:
    case Op::maximum: return std::max(of(0), of(1));
    case Op::select: return std::max(of(1), of(2));
    case Op::to_real:
      return graph[node.children[0]].type == expression::Type::boolean ? 1.0 : std::numeric_limits<double>::infinity();
    default: return std::numeric_limits<double>::infinity();
  }
}

double largest(const Graph& graph, Id root) {
  std::vector<double> known(graph.size(), std::numeric_limits<double>::infinity());
  for (const Id id : expression::reachable(graph, std::array{root})) {
    if (graph[id].type == expression::Type::real) known[id] = largest(graph, known, graph[id]);
  }
  return known[root];
}

/// Whether kernels evaluate the mask at each score: else in a loop, for less code.
bool is_short(const expression::Formula& formula, const expression::KeptValues& kept) {
  constexpr int kMostInstructions = 12;
  std::vector<Id> known;
  for (const auto* ids : {&kept.tile, &kept.query, &kept.key, &kept.diagonal}) {
    known.insert(known.end(), ids->begin(), ids->end());
  }
  return expression::cost_of_pair(formula.graph(), std::array{formula.mask()}, known) <= kMostInstructions;
}

/// Of one of these texts at least.
TextRule rule_of(const expression::Formula& formula, const expression::Parts& parts) {
  constexpr double kMostNarrow = 16.0;  // times a probability, and 2^12, it is a float16
  const expression::KeptValues& kept = formula.kept(parts);
  TextRule rule;
  rule.score = parts.score;
  rule.slope = rule.score && !formula.graph().is_literal(formula.slope(), 1.0);
  rule.wide_slope = rule.slope && !(largest(formula.graph(), formula.slope()) < kMostNarrow);
  rule.mask = parts.mask;
  rule.short_mask = rule.mask && is_short(formula, kept);
  rule.tile_values = static_cast<int>(kept.tile.size());
  rule.query_values = static_cast<int>(kept.query.size());
  rule.key_values = static_cast<int>(kept.key.size());
  rule.diagonal_values = static_cast<int>(kept.diagonal.size());
  std::tie(rule.code_low, rule.code_high) = codes().name_of(formula, parts);
  return rule;
}

}  // namespace

bool has_text_mask(const AttentionProblem& problem) {
  const ExpressionShape& expression = problem.expression;
  return expression.given() && expression.formula->has_mask() && !expression.mask_is_option;
}

TextRule text_rule(const AttentionProblem& problem) {
  const ExpressionShape& expression = problem.expression;
  if (!expression.given()) return {};
  const expression::Parts parts{.score = expression.formula->has_score() && !expression.score_is_option,
                                .mask = has_text_mask(problem) && !expression.mask_is_bits};
  return parts.score || parts.mask ? rule_of(*expression.formula, parts) : TextRule();
}

TextRule mask_rule(const AttentionProblem& problem) {
  return has_text_mask(problem) ? rule_of(*problem.expression.formula, {.mask = true}) : TextRule();
}

std::string code_of(const TextRule& rule) {
  return has_text(rule) ? codes().find({rule.code_low, rule.code_high}) : std::string();
}

std::vector<std::string> forward_options(const ScoreRule& rule) {
  if (rule.row_invariant && has_text(rule)) return {"--fmad=false"};
  return {};
}

}  // namespace strobe::gpu
