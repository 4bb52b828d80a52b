// SPDX-License-Identifier: Apache-2.0
#include "expression/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace strobe::expression {
namespace {

constexpr std::array<std::string_view, kVariables> kVariableNames = {"score",   "q",     "k",     "head",
                                                                     "head_kv", "batch", "q_len", "k_len"};

constexpr auto kFunctions = std::to_array<Function>({
    {"min", Op::minimum, 2, true},
    {"max", Op::maximum, 2, true},
    {"abs", Op::absolute, 1, true},
    {"exp", Op::exp, 1, false},
    {"exp2", Op::exp2, 1, false},
    {"log", Op::log, 1, false},
    {"tanh", Op::tanh, 1, false},
    {"sigmoid", Op::sigmoid, 1, false},
    {"sqrt", Op::sqrt, 1, false},
    {"rsqrt", Op::rsqrt, 1, false},
    {"sin", Op::sin, 1, false},
    {"cos", Op::cos, 1, false},
    {"floor", Op::floor, 1, false},
    {"float", Op::to_real, 1, true},
    {"int", Op::to_integer, 1, true},
});

constexpr std::array<std::string_view, 3> kMoreNames = {"pow", "true", "inf"};

/// What other languages write, and what is written here.
constexpr auto kForeign = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"and", "&&"},
    {"&", "&&"},
    {"or", "||"},
    {"|", "||"},
    {"not", "!"},
    {"~", "!"},
    {"=", "=="},
    {"**", "pow(a, b)"},
    {"if", "c ? a : b"},
    {"where", "c ? a : b"},
    {"True", "true"},
    {"False", "false"},
    {"q_idx", "q"},
    {"kv_idx", "k"},
});

/// Insertions, deletions and substitutions from one word to another.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0U);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view name_of(Type type) {
  switch (type) {
    case Type::boolean: return "boolean";
    case Type::integer: return "integer";
    default: return "real";
  }
}

std::string_view name_of(Variable variable) { return kVariableNames[static_cast<std::size_t>(variable)]; }

std::optional<Variable> find_variable(std::string_view name) {
  const auto* const found = std::ranges::find(kVariableNames, name);
  if (found == kVariableNames.end()) return std::nullopt;
  return static_cast<Variable>(found - kVariableNames.begin());
}

const Function* find_function(std::string_view name) {
  const auto* const found = std::ranges::find(kFunctions, name, &Function::name);
  return found == kFunctions.end() ? nullptr : found;
}

std::string_view name_of(Op op) {
  switch (op) {
    case Op::negate: return "-";
    case Op::add: return "+";
    case Op::multiply: return "*";
    case Op::divide:
    case Op::floor_divide: return "/";
    case Op::remainder: return "%";
    case Op::less: return "<";
    case Op::less_equal: return "<=";
    case Op::equal: return "==";
    case Op::logical_and: return "&&";
    case Op::logical_or: return "||";
    case Op::logical_not: return "!";
    default: break;
  }
  const auto* const found = std::ranges::find(kFunctions, op, &Function::op);
  return found == kFunctions.end() ? "" : found->name;
}

std::string suggestion(std::string_view name, std::span<const std::string> known) {
  if (name.size() > 64) return {};
  std::string_view best;
  std::size_t fewest = name.size() < 5 ? 1 : 2;  // edits that are a slip
  const auto consider = [&](std::string_view other) {
    const std::size_t count = edits(name, other);
    if (count > fewest || count >= std::max(name.size(), other.size())) return;
    if (!best.empty() && count == fewest) return;
    best = other;
    fewest = count;
  };
  for (const std::string& other : known) consider(other);
  for (const std::string_view other : kVariableNames) consider(other);
  for (const Function& function : kFunctions) consider(function.name);
  for (const std::string_view other : kMoreNames) consider(other);
  return best.empty() ? std::string() : fmt::format("; did you mean `{}`?", best);
}

std::string instead_of(std::string_view word) {
  const auto* const found = std::ranges::find(kForeign, word, &std::pair<std::string_view, std::string_view>::first);
  return found == kForeign.end() ? std::string() : fmt::format(": write `{}`", found->second);
}

}  // namespace strobe::expression
