// SPDX-License-Identifier: Apache-2.0
#include "expression/print.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "expression/names.h"

namespace strobe::expression {
namespace {

/// How strongly an operation binds its operands; one that binds more weakly than what it stands in has parentheses.
enum class Binding : std::uint8_t { choice, either, both, equality, comparison, sum, product, sign, atom };

Binding binding_of(const Node& node) {
  switch (node.op) {
    case Op::select: return Binding::choice;
    case Op::logical_or: return Binding::either;
    case Op::logical_and: return Binding::both;
    case Op::equal: return Binding::equality;
    case Op::less:
    case Op::less_equal: return Binding::comparison;
    case Op::add: return Binding::sum;
    case Op::multiply:
    case Op::divide:
    case Op::floor_divide:
    case Op::remainder: return Binding::product;
    case Op::negate:
    case Op::logical_not: return Binding::sign;
    case Op::literal: return node.value < 0.0 ? Binding::sign : Binding::atom;
    default: return Binding::atom;
  }
}

class Printer {
 public:
  Printer(const Graph& graph, std::span<const Capture> captures) : graph_(graph), captures_(captures) {}

  std::string text(Id id, Binding least) {
    if (++printed_ > kMostPrinted) return "...";
    const Node& node = graph_[id];
    const std::string inner = of(node);
    return binding_of(node) < least ? fmt::format("({})", inner) : inner;
  }

 private:
  std::string of(const Node& node) {
    const auto [a, b, c] = std::tuple(node.children[0], node.children[1], node.children[2]);
    const Binding binding = binding_of(node);
    const auto next = static_cast<Binding>(static_cast<int>(binding) + 1);
    switch (node.op) {
      case Op::literal: return literal(node);
      case Op::variable: return std::string(name_of(static_cast<Variable>(node.which)));
      case Op::load: return load(node);
      case Op::select:
        return fmt::format("{} ? {} : {}", text(a, Binding::either), text(b, Binding::choice),
                           text(c, Binding::choice));
      case Op::add: return sum(a, b);
      case Op::negate:
      case Op::logical_not: return fmt::format("{}{}", name_of(node.op), text(a, Binding::sign));
      case Op::multiply:
        if (graph_[b].op == Op::literal) {  // a literal factor comes first
          return fmt::format("{} * {}", text(b, Binding::product), text(a, Binding::sign));
        }
        [[fallthrough]];
      case Op::divide:
      case Op::floor_divide:
      case Op::remainder:
      case Op::less:
      case Op::less_equal:
      case Op::equal:
      case Op::logical_and:
      case Op::logical_or: return fmt::format("{} {} {}", text(a, binding), name_of(node.op), text(b, next));
      default: break;
    }
    if (node.count == 1) return fmt::format("{}({})", name_of(node.op), text(a, Binding::choice));
    return fmt::format("{}({}, {})", name_of(node.op), text(a, Binding::choice), text(b, Binding::choice));
  }

  /// Literals come last, and negative summands as differences.
  std::string sum(Id a, Id b) {
    const auto negated = [&](Id id) { return graph_[id].op == Op::negate; };
    const auto is_late = [&](Id id) { return negated(id) || graph_[id].op == Op::literal; };
    if (is_late(a) && !is_late(b)) std::swap(a, b);
    if (negated(b)) return fmt::format("{} - {}", text(a, Binding::sum), text(graph_[b].children[0], Binding::product));
    const Node& last = graph_[b];
    if (last.op == Op::literal && last.value < 0.0 && std::isfinite(last.value)) {
      Node positive = last;
      positive.value = -last.value;
      if (last.type == Type::real || last.value > -2147483648.0) {
        return fmt::format("{} - {}", text(a, Binding::sum), literal(positive));
      }
    }
    return fmt::format("{} + {}", text(a, Binding::sum), text(b, Binding::product));
  }

  static std::string literal(const Node& node) {
    if (node.type == Type::boolean) return node.value != 0.0 ? "true" : "false";
    if (node.type == Type::integer) {
      return node.value == -2147483648.0 ? "-2147483647 - 1" : fmt::format("{}", static_cast<std::int64_t>(node.value));
    }
    if (std::isinf(node.value)) return node.value < 0.0 ? "-inf" : "inf";
    if (std::isnan(node.value)) return "inf - inf";
    const std::string digits = fmt::format("{}", static_cast<float>(node.value));
    return digits.find_first_of(".e") == std::string::npos ? digits + ".0" : digits;
  }

  std::string load(const Node& node) {
    std::string indexed = captures_[node.which].name;
    for (const Id index : node.inputs()) indexed += fmt::format("[{}]", text(index, Binding::choice));
    return indexed;
  }

  static constexpr int kMostPrinted = 2000;  // a few nodes may stand in a text very many times

  const Graph& graph_;
  std::span<const Capture> captures_;
  int printed_ = 0;
};

}  // namespace

std::string text_of(const Graph& graph, Id id, std::span<const Capture> captures) {
  return Printer(graph, captures).text(id, Binding::choice);
}

}  // namespace strobe::expression
