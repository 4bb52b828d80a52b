// SPDX-License-Identifier: Apache-2.0
#include "call/problem_text.h"

#include <fmt/format.h>

#include <type_traits>

#include "call/problem_fields.h"

namespace strobe {
namespace {

template <class Struct>
std::string json_of(const Struct& value);

template <class Value>
std::string json_value(const Value& value) {
  if constexpr (std::is_same_v<Value, bool> || std::is_integral_v<Value> || std::is_floating_point_v<Value>) {
    return fmt::format("{}", value);
  } else if constexpr (std::is_enum_v<Value>) {
    return fmt::format("\"{}\"", names_of(value)[static_cast<std::size_t>(value)]);
  } else {
    return json_of(value);
  }
}

template <class Struct>
std::string json_of(const Struct& value) {
  const Struct standard;
  std::string fields;
  std::apply(
      [&](const auto&... all) {
        const auto add = [&](const auto& field) {
          const auto& mine = value.*(field.member);
          using Value = std::remove_cvref_t<decltype(mine)>;
          if constexpr (!std::is_same_v<Value, Device> && !std::is_same_v<Value, ExpressionShape>) {
            if (mine == standard.*(field.member)) return;
            fields += fmt::format("{}\"{}\": {}", fields.empty() ? "" : ", ", field.name, json_value(mine));
          }
        };
        (add(all), ...);
      },
      fields_of(value));
  return fmt::format("{{{}}}", fields);
}

}  // namespace

std::string call_text(const AttentionProblem& problem) { return json_of(problem); }

}  // namespace strobe
