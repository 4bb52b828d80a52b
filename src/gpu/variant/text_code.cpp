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
  Name name_of(const expression::Formula& formula) {
    const std::scoped_lock lock(mutex_);
    const auto known = names_.find(formula.text());
    if (known != names_.end()) return known->second;
    return names_[formula.text()] = add(expression::device_code(formula));
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
  std::map<std::string, Name, std::less<>> names_;  // by texts
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
bool is_short(const expression::Formula& formula) {
  constexpr int kMostInstructions = 12;
  std::vector<Id> kept;
  for (const auto* ids : {&formula.kept().tile, &formula.kept().query, &formula.kept().key, &formula.kept().diagonal}) {
    kept.insert(kept.end(), ids->begin(), ids->end());
  }
  return expression::cost_of_pair(formula.graph(), std::array{formula.mask()}, kept) <= kMostInstructions;
}

}  // namespace

TextRule text_rule(const AttentionProblem& problem) {
  if (!problem.expression.given()) return {};
  constexpr double kMostNarrow = 16.0;  // times a probability, and 2^12, it is a float16
  const expression::Formula& formula = *problem.expression.formula;
  TextRule rule;
  rule.score = formula.has_score() && !problem.expression.score_is_option;
  rule.slope = rule.score && !formula.graph().is_literal(formula.slope(), 1.0);
  rule.wide_slope = rule.slope && !(largest(formula.graph(), formula.slope()) < kMostNarrow);
  rule.mask = formula.has_mask() && !problem.expression.mask_is_option;
  if (!has_text(rule)) return {};
  rule.short_mask = rule.mask && is_short(formula);
  rule.tile_values = static_cast<int>(formula.kept().tile.size());
  rule.query_values = static_cast<int>(formula.kept().query.size());
  rule.key_values = static_cast<int>(formula.kept().key.size());
  rule.diagonal_values = static_cast<int>(formula.kept().diagonal.size());
  std::tie(rule.code_low, rule.code_high) = codes().name_of(formula);
  return rule;
}

std::string code_of(const TextRule& rule) {
  return has_text(rule) ? codes().find({rule.code_low, rule.code_high}) : std::string();
}

std::vector<std::string> forward_options(const ScoreRule& rule) {
  if (rule.row_invariant && has_text(rule)) return {"--fmad=false"};
  return {};
}

}  // namespace strobe::gpu
