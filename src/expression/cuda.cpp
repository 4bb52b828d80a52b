// SPDX-License-Identifier: Apache-2.0
#include "expression/cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>
#include <vector>

#include "expression/names.h"

namespace strobe::expression {
namespace {

std::string_view type_of(Type type) {
  switch (type) {
    case Type::boolean: return "bool";
    case Type::integer: return "int";
    default: return "float";
  }
}

/// The device's function of kernels/expression/element.h or range.h.
std::string_view function_of(Op op) {
  switch (op) {
    case Op::to_integer: return "to_integer";
    case Op::to_real: return "to_real";
    case Op::negate: return "negate";
    case Op::add: return "add";
    case Op::multiply: return "multiply";
    case Op::divide: return "divide";
    case Op::floor_divide: return "floor_divide";
    case Op::remainder: return "remainder";
    case Op::minimum: return "minimum";
    case Op::maximum: return "maximum";
    case Op::absolute: return "absolute";
    case Op::exp: return "exp_of";
    case Op::exp2: return "exp2_of";
    case Op::log: return "log_of";
    case Op::tanh: return "tanh_of";
    case Op::sigmoid: return "sigmoid_of";
    case Op::sqrt: return "sqrt_of";
    case Op::rsqrt: return "rsqrt_of";
    case Op::sin: return "sin_of";
    case Op::cos: return "cos_of";
    case Op::floor: return "floor_of";
    case Op::less: return "less";
    case Op::less_equal: return "less_equal";
    case Op::equal: return "equal";
    case Op::logical_and: return "logical_and";
    case Op::logical_or: return "logical_or";
    case Op::logical_not: return "logical_not";
    case Op::select: return "select";
    default: return "";
  }
}

std::string literal(const Node& node) {
  if (node.type == Type::boolean) return node.value != 0.0 ? "true" : "false";
  if (node.type == Type::integer) return fmt::format("int({})", static_cast<std::int64_t>(node.value));
  return fmt::format("__uint_as_float(0x{:08x}U)", std::bit_cast<std::uint32_t>(static_cast<float>(node.value)));
}

/// "x3, x5"
std::string operands(const Node& node) {
  std::string list;
  for (const Id child : node.inputs()) list += fmt::format("{}x{}", list.empty() ? "" : ", ", child);
  return list;
}

/// As kernels/expression/captures.h names it.
std::string_view stored(const Capture& capture) {
  switch (capture.dtype) {
    case DType::float16: return "Stored::float16";
    case DType::bfloat16: return "Stored::bfloat16";
    case DType::int32: return "Stored::int32";
    case DType::int64: return "Stored::int64";
    case DType::uint8: return "Stored::boolean";
    default: return "Stored::float32";
  }
}

/// "load_float<Stored::float32>(captures, 2, x3, x5)"
std::string reading(const Formula& formula, std::string_view function, const Node& node) {
  const std::string list = operands(node);
  return fmt::format("{}_{}<{}>(captures, {}{}{})", function, type_of(node.type),
                     stored(formula.captures()[node.which]), node.which, list.empty() ? "" : ", ", list);
}

std::string value_of(const Formula& formula, const Node& node) {
  switch (node.op) {
    case Op::literal: return literal(node);
    case Op::variable: {
      const std::string_view name = name_of(static_cast<Variable>(node.which));
      return node.which == 0 ? std::string(name) : fmt::format("position.{}", name);
    }
    case Op::load: return reading(formula, "load", node);
    default: return fmt::format("{}({})", function_of(node.op), operands(node));
  }
}

/// Values that a kernel has, as it says them.
using Places = std::map<Id, std::string>;

/// "real_of(kept.tile[0])"
std::string kept_value(Type type, std::string_view scope, std::size_t i) {
  const std::string_view name = type == Type::boolean ? "boolean" : type == Type::integer ? "integer" : "real";
  return fmt::format("{}_of(kept.{}[{}])", name, scope, i);
}

/// Where an integer is k - q, its negative or the size of either: the real from Position::distance; else nothing.
std::string real_distance(const Graph& graph, Id id) {
  const Node& node = graph[id];
  const auto is = [&](Id child, Variable variable) {
    return graph[child].op == Op::variable && graph[child].which == static_cast<int>(variable);
  };
  const auto is_less = [&](Id child, Variable variable) {
    return graph[child].op == Op::negate && is(graph[child].children[0], variable);
  };
  if (node.op == Op::negate || node.op == Op::absolute) {
    const std::string inner = real_distance(graph, node.children[0]);
    return inner.empty() ? "" : fmt::format("{}({})", function_of(node.op), inner);
  }
  if (node.op != Op::add) return "";
  for (const std::size_t i : {0U, 1U}) {
    const Id x = node.children[i];
    const Id y = node.children[1 - i];
    if (is(x, Variable::k) && is_less(y, Variable::q)) return "position.distance";
    if (is(x, Variable::q) && is_less(y, Variable::k)) return "negate(position.distance)";
  }
  return "";
}

void add_real_distances(const Graph& graph, Places& places) {
  for (std::size_t id = 0; id < graph.size(); ++id) {
    const Node& node = graph[static_cast<Id>(id)];
    if (node.op != Op::to_real) continue;
    const std::string value = real_distance(graph, node.children[0]);
    if (!value.empty()) places.emplace(static_cast<Id>(id), value);
  }
}

/// One constant a node, children first.
std::string statements(const Formula& formula, std::span<const Id> roots, const Places& places = {}) {
  const Graph& graph = formula.graph();
  std::vector<Id> kept;
  for (const auto& [id, place] : places) kept.push_back(id);
  std::string lines;
  for (const Id id : reachable(graph, roots, kept)) {
    const Node& node = graph[id];
    const auto place = places.find(id);
    lines += fmt::format("  const {} x{} = {};\n", type_of(node.type), id,
                         place == places.end() ? value_of(formula, node) : place->second);
  }
  return lines;
}

std::string function(std::string_view head, const Formula& formula, Id root, const Places& places = {}) {
  return fmt::format("__device__ __forceinline__ {} {{\n{}  return x{};\n}}\n\n", head,
                     statements(formula, std::array{root}, places), root);
}

/// What finds the values of one scope.
std::string finding(const Formula& formula, std::string_view scope, std::span<const Id> ids) {
  if (ids.empty()) return "";
  std::string lines = statements(formula, ids);
  for (std::size_t i = 0; i < ids.size(); ++i) lines += fmt::format("  words[{}] = word_of(x{});\n", i, ids[i]);
  return fmt::format(
      "template <typename Captures>\n__device__ __forceinline__ void {}_values(const Captures& captures, const "
      "Position& position, unsigned* words) {{\n{}}}\n\n",
      scope, lines);
}

/// As kernels/expression/element.h names it.
std::string_view identifier_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::head: return "head";
    case Pattern::query: return "query";
    case Pattern::key: return "key";
    case Pattern::diagonal: return "diagonal";
    case Pattern::pair: return "pair";
    case Pattern::scattered: return "scattered";
    default: return "none";
  }
}

/// The mask by intervals; what hangs on a real may be anything.
std::string visibility(const Formula& formula) {
  const Graph& graph = formula.graph();
  std::string lines;
  for (const Id id : reachable(graph, std::array{formula.mask()})) {
    const Node& node = graph[id];
    const auto is_real = [&](Id child) { return graph[child].type == Type::real; };
    if (node.type == Type::real) continue;
    std::string value;
    if (std::ranges::any_of(node.inputs(), is_real)) {
      value = node.type == Type::boolean ? "any_boolean()" : "any_integer()";
    } else if (node.op == Op::literal) {
      value = fmt::format("just({})", static_cast<std::int64_t>(node.value));
    } else if (node.op == Op::variable) {
      value = fmt::format("tile.{}", name_of(static_cast<Variable>(node.which)));
    } else if (node.op == Op::load) {
      value = reading(formula, "range_of", node);
    } else {
      value = fmt::format("{}({})", function_of(node.op), operands(node));
    }
    lines += fmt::format("  const Range x{} = {};\n", id, value);
  }
  return fmt::format(
      "template <typename Captures>\n__device__ __forceinline__ Range visibility(const Captures& captures, const "
      "TileRanges& tile) {{\n{}  return x{};\n}}\n\n",
      lines, formula.mask());
}

/// What is known of the reads when they are compiled.
std::string constants_of_reads(const Formula& formula) {
  std::string captures;
  std::string patterns;
  for (const Read& read : formula.reads()) {
    captures += fmt::format("{}{}", captures.empty() ? "" : ", ", read.capture);
    patterns += fmt::format("{}Pattern::{}", patterns.empty() ? "" : ", ", identifier_of(read.pattern));
  }
  return fmt::format(
      "constexpr int kReads = {};\nconstexpr int capture_of_read(int read) {{\n  constexpr int kOf[] = {{{}}};\n  "
      "return kOf[read];\n}}\nconstexpr Pattern pattern_of_read(int read) {{\n  constexpr Pattern kOf[] = {{{}}};\n  "
      "return kOf[read];\n}}\n\n",
      formula.reads().size(), captures.empty() ? "0" : captures, patterns.empty() ? "Pattern::none" : patterns);
}

std::string for_each_read(const Formula& formula) {
  const Graph& graph = formula.graph();
  std::vector<Id> roots;
  for (const Read& read : formula.reads()) {
    roots.push_back(read.derivative);
    std::ranges::copy(graph[read.load].inputs(), std::back_inserter(roots));
  }
  std::string lines = statements(formula, roots);
  for (std::size_t i = 0; i < formula.reads().size(); ++i) {
    const Read& read = formula.reads()[i];
    const std::string list = operands(graph[read.load]);
    lines += fmt::format("  visit.template operator()<{}, {}>(place_of(gradients, {}{}{}), x{});\n", i, read.capture,
                         read.capture, list.empty() ? "" : ", ", list, read.derivative);
  }
  return fmt::format(
      "template <typename Captures, typename Visit>\n__device__ __forceinline__ void for_each_read(const Captures& "
      "captures, const Captures& gradients, const Position& position, float score, const Visit& visit) {{\n{}}}\n\n",
      lines);
}

/// The functions that find what kernels keep, and where each value is.
std::string finding_all(const Formula& formula, const KeptValues& kept, Places& places) {
  std::string code;
  for (const auto& [scope, ids] : {std::pair("tile", &kept.tile), std::pair("query", &kept.query),
                                   std::pair("key", &kept.key), std::pair("diagonal", &kept.diagonal)}) {
    code += finding(formula, scope, *ids);
    for (std::size_t i = 0; i < ids->size(); ++i) {
      places[(*ids)[i]] = kept_value(formula.graph()[(*ids)[i]].type, scope, i);
    }
  }
  return code;
}

}  // namespace

std::string device_code(const Formula& formula, const Parts& parts) {
  constexpr std::string_view kTakes = "const Captures& captures, const Position& position";
  std::string code =
      "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n\n#include \"kernels/expression/element.h\"\n"
      "#include \"kernels/expression/range.h\"\n\nnamespace strobe::expression {\n\n";
  Places places;
  code += finding_all(formula, formula.kept(parts), places);
  add_real_distances(formula.graph(), places);
  const auto add = [&](std::string_view type, std::string_view name, std::string_view more, Id root) {
    code += fmt::format("template <typename Captures>\n{}",
                        function(fmt::format("{} {}({}{})", type, name, kTakes, more), formula, root));
    code += fmt::format(
        "template <typename Captures, typename Kept>\n{}",
        function(fmt::format("{} {}({}, const Kept& kept{})", type, name, kTakes, more), formula, root, places));
  };
  if (parts.score) {
    add("float", "score_of", ", float score", formula.score());
    add("float", "slope_of", ", float score", formula.slope());
    code += constants_of_reads(formula) + for_each_read(formula);
  }
  if (parts.mask) {
    add("bool", "shows", "", formula.mask());
    code += visibility(formula);
  }
  return code + "}  // namespace strobe::expression\n";
}

}  // namespace strobe::expression
