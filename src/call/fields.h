// SPDX-License-Identifier: Apache-2.0
// A struct by its fields: what is said of each is a loop over one list.
#pragma once

#include <string_view>
#include <tuple>

#include "call/count_fields.h"

namespace strobe {

/// One field of `Struct`.
template <class Struct, class Value>
struct Field {
  std::string_view name;
  Value Struct::* member;
};

template <class Struct, class Value>
constexpr Field<Struct, Value> field(std::string_view name, Value Struct::* member) {
  return {name, member};
}

/// All fields of `Struct`, in order. Does not compile when one is missing.
template <class Struct, class... Values>
constexpr std::tuple<Field<Struct, Values>...> all_fields(const Field<Struct, Values>&... fields) {
  static_assert(sizeof...(Values) == count_fields<Struct>(), "every field of the struct must be listed");
  return {fields...};
}

/// visit(name, value) for each field. fields_of(const Struct&) is found beside the type.
template <class Struct, class Visit>
void for_each_field(Struct& value, const Visit& visit) {
  std::apply([&](const auto&... fields) { (visit(fields.name, value.*(fields.member)), ...); }, fields_of(value));
}

}  // namespace strobe
