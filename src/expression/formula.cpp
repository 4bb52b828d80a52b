// SPDX-License-Identifier: Apache-2.0
#include "expression/formula.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "expression/names.h"
#include "expression/print.h"

namespace strobe::expression {
namespace {

constexpr std::size_t kMostDerived = 4096;  // nodes with all derivatives

Status check_name(std::span<const Capture> captures, const Capture& capture) {
  const std::string& name = capture.name;
  const auto is_word = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; };
  const bool word =
      !name.empty() && std::ranges::all_of(name, is_word) && std::isdigit(static_cast<unsigned char>(name[0])) == 0;
  const auto fail = [&](std::string_view why) {
    return Status(StatusCode::invalid_argument, fmt::format("captures: `{}` {}", name, why));
  };
  if (!word || name.size() > 32) return fail("is not a name of at most 32 letters, digits and underscores");
  if (find_variable(name) || find_function(name) != nullptr || name == "pow" || name == "true" || name == "false" ||
      name == "inf") {
    return fail("is a name of the language");
  }
  if (std::ranges::count(captures, name, &Capture::name) > 1) return fail("is given twice");
  switch (capture.dtype) {
    case DType::float32:
    case DType::float16:
    case DType::bfloat16:
    case DType::int32:
    case DType::int64:
    case DType::uint8: break;
    default:
      return fail(fmt::format("is {}, where float32, float16, bfloat16, int32, int64 and uint8 are accepted",
                              name_of(capture.dtype)));
  }
  if (capture.rank < 0 || capture.rank > kMostChildren) {
    return fail(fmt::format("has {} dimensions, 4 are the most", capture.rank));
  }
  return {};
}

Pattern pattern_of(const Graph& graph, const std::vector<Scope>& scopes, const Node& load) {
  const auto any = [&](Scope scope) {
    return std::ranges::any_of(load.inputs(), [&](Id index) { return scopes[index] == scope; });
  };
  const bool by_pair = any(Scope::pair);
  if (!by_pair && !any(Scope::diagonal)) {
    if (!any(Scope::key)) return any(Scope::query) ? Pattern::query : Pattern::head;
    if (!any(Scope::query)) return Pattern::key;
  }
  const auto is = [&](Variable variable) {
    return std::ranges::any_of(load.inputs(), [&](Id index) {
      return graph[index].op == Op::variable && graph[index].which == static_cast<int>(variable);
    });
  };
  if (is(Variable::q) && is(Variable::k)) return Pattern::pair;
  return by_pair || any(Scope::query) || any(Scope::key) ? Pattern::scattered : Pattern::diagonal;
}

bool reads_positions_alone(const Graph& graph, Id root) {
  constexpr Variables kPositions = bit(Variable::q) | bit(Variable::k) | bit(Variable::q_len) | bit(Variable::k_len);
  return std::ranges::all_of(reachable(graph, std::array{root}), [&](Id id) {
    const Node& node = graph[id];
    if (node.op == Op::variable) return (bit(static_cast<Variable>(node.which)) & kPositions) != 0;
    return node.op != Op::load;
  });
}

}  // namespace

std::string_view name_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::head: return "one sum";
    case Pattern::query: return "a sum over keys";
    case Pattern::key: return "a sum over queries";
    case Pattern::diagonal: return "a sum along diagonals";
    case Pattern::pair: return "an element a pair";
    case Pattern::scattered: return "scattered";
    default: return "none";
  }
}

void Formula::keep_values() {
  std::vector<Id> roots;
  if (has_score()) roots = {score(), slope()};
  kept_of_score_ = kept_values(graph_, roots);
  if (has_mask()) {
    kept_of_mask_ = kept_values(graph_, std::array{mask()});
    roots.push_back(mask());
  }
  kept_ = kept_values(graph_, roots);
}

Status Formula::parse_texts(std::string_view score, std::string_view mask) {
  const auto parse_one = [&](std::string_view what, std::string_view text, bool boolean, std::optional<Id>& simplified,
                             std::optional<Id>& written) -> Status {
    if (text.empty()) return {};
    const Source source{what, text};
    const Result<Id> root = expression::parse(source, captures_, boolean, graph_);
    if (!root.ok()) return root.status();
    simplified = *root;
    const Result<Id> same = expression::parse(source, captures_, boolean, written_);
    if (!same.ok()) return same.status();
    written = *same;
    return {};
  };
  if (Status status = parse_one("score", score, false, score_, written_score_); !status.ok()) return status;
  return parse_one("mask", mask, true, mask_, written_mask_);
}

void Formula::derive() {
  if (!score_) return;
  const Adjoints adjoints = differentiate(graph_, *score_);
  slope_ = adjoints.score;
  const std::vector<Scope> scopes = scopes_of(graph_);
  for (const Adjoint& one : adjoints.loads) {
    const Node& load = graph_[one.load];
    reads_.push_back({load.which, one.load, one.derivative, pattern_of(graph_, scopes, load)});
  }
}

std::uint64_t Formula::hash_of_all() const {
  std::uint64_t hash = 0x9E3779B97F4A7C15U;
  const auto mix = [&](std::uint64_t more) { hash = (hash ^ more) * 0xBF58476D1CE4E5B9U + (hash >> 31U); };
  mix(score_ ? graph_.hash(*score_) : 1U);
  mix(mask_ ? graph_.hash(*mask_) : 2U);
  for (const Capture& capture : captures_) {
    mix(static_cast<std::uint64_t>(capture.dtype));
    mix(static_cast<std::uint64_t>(capture.rank));
  }
  return hash;
}

Result<std::shared_ptr<const Formula>> Formula::parse(std::string_view score, std::string_view mask,
                                                      std::span<const Capture> captures) {
  if (score.empty() && mask.empty()) {
    return Status(StatusCode::invalid_argument, "neither a score nor a mask is given, of which one must be");
  }
  if (captures.size() > kMaxCaptures) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("captures: {} are given, {} are the most", captures.size(), kMaxCaptures));
  }
  for (const Capture& capture : captures) {
    if (Status status = check_name(captures, capture); !status.ok()) return status;
  }
  const std::shared_ptr<Formula> formula(new Formula);
  formula->captures_.assign(captures.begin(), captures.end());
  if (Status status = formula->parse_texts(score, mask); !status.ok()) return status;
  formula->derive();
  if (formula->graph_.size() > kMostDerived) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("score: with its derivatives the text has {} operations, of which {} are the most",
                              formula->graph_.size(), kMostDerived));
  }
  if (formula->reads_.size() > kMostReads) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("score: the text reads real captures at {} places, of which {} are the most",
                              formula->reads_.size(), kMostReads));
  }
  formula->keep_values();
  if (formula->has_score()) formula->score_terms_ = expression::score_terms(formula->graph_, formula->score());
  if (formula->has_mask()) {
    formula->mask_is_of_positions_ = reads_positions_alone(formula->graph_, formula->mask());
  }
  formula->hash_ = formula->hash_of_all();
  formula->score_text_ = score;
  formula->mask_text_ = mask;
  for (const Capture& capture : captures) {
    formula->text_ += fmt::format("{} {} of {} dimensions; ", name_of(capture.dtype), capture.name, capture.rank);
  }
  if (!score.empty()) formula->text_ += fmt::format("score = {}; ", score);
  if (!mask.empty()) formula->text_ += fmt::format("mask = {}; ", mask);
  return std::shared_ptr<const Formula>(formula);
}

std::string Formula::explain() const {
  std::string lines;
  const auto name = [&](int capture) { return captures_[capture].name; };
  if (score_) {
    lines += fmt::format("score: {}\n", text_of(graph_, *score_, captures_));
    lines += fmt::format("d score / d score: {}\n", text_of(graph_, slope_, captures_));
  }
  if (mask_) lines += fmt::format("mask: {}\n", text_of(graph_, *mask_, captures_));
  for (const Read& read : reads_) {
    lines += fmt::format("d score / d {}: {} ({})\n", name(read.capture), text_of(graph_, read.derivative, captures_),
                         name_of(read.pattern));
  }
  return lines;
}

}  // namespace strobe::expression
