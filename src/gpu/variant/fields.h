// SPDX-License-Identifier: Apache-2.0
// A kernel's configuration by its fields: from one list the C++ text, the name and the hash of a variant.
// name_of(value) and type_name(value) of enumerations are found beside the type.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "call/fields.h"

namespace strobe::gpu {

using strobe::all_fields;
using strobe::field;
using strobe::for_each_field;

/// The value as C++ spells it, as a template argument.
template <class Value>
std::string cpp_text(const Value& value) {
  if constexpr (std::is_same_v<Value, bool> || std::is_same_v<Value, int>) {
    return fmt::format("{}", value);
  } else if constexpr (std::is_enum_v<Value>) {
    return fmt::format("{}::{}", type_name(value), name_of(value));
  } else {
    std::string fields;
    for_each_field(value, [&](std::string_view name, const auto& one) {
      fields += fmt::format("{}.{} = {}", fields.empty() ? "" : ", ", name, cpp_text(one));
    });
    return fmt::format("{}{{{}}}", type_name(value), fields);
  }
}

/// What the fields are unless they are set; some follow from the rule.
template <class Struct>
constexpr Struct standard_of(const Struct& value) {
  if constexpr (requires { value.rule; }) {
    return {.rule = value.rule};
  } else {
    return {};
  }
}

/// Text for people: the fields that differ from their standard, "head_dim 64, mask_right".
template <class Struct>
std::string short_text(const Struct& value) {
  std::string text;
  const auto add = [&](const std::string& words) { text += (text.empty() || words.empty() ? "" : ", ") + words; };
  const Struct standard = standard_of(value);
  std::apply(
      [&](const auto&... fields) {
        const auto one = [&](const auto& field) {
          const auto& mine = value.*(field.member);
          using Value = std::remove_cvref_t<decltype(mine)>;
          if constexpr (std::is_same_v<Value, bool>) {
            if (mine != standard.*(field.member)) add(fmt::format("{}{}", mine ? "" : "no ", field.name));
          } else if constexpr (std::is_same_v<Value, int>) {
            if (mine != standard.*(field.member)) add(fmt::format("{} {}", field.name, mine));
          } else if constexpr (std::is_enum_v<Value>) {
            if (mine != standard.*(field.member)) add(std::string(name_of(mine)));
          } else {
            add(short_text(mine));
          }
        };
        (one(fields), ...);
      },
      fields_of(value));
  return text;
}

/// The hash of all fields.
template <class Value>
std::size_t hash_of(const Value& value) {
  if constexpr (std::is_scalar_v<Value>) {
    return static_cast<std::size_t>(value);
  } else {
    std::size_t hash = 0;
    for_each_field(value, [&](std::string_view, const auto& one) { hash = hash * 1000003U ^ hash_of(one); });
    return hash;
  }
}

}  // namespace strobe::gpu
