// SPDX-License-Identifier: Apache-2.0
// The names of the language: variables and functions, and the spelling of a mistaken one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expression/graph.h"

namespace strobe::expression {

std::string_view name_of(Type type);  // "boolean", "integer", "real"
std::string_view name_of(Variable variable);
std::optional<Variable> find_variable(std::string_view name);
inline constexpr int kVariables = 8;

/// A function of the language.
struct Function {
  std::string_view name;
  Op op;
  int parameters;
  bool integers_too;  // else an integer argument is converted to a real
};

/// Null: there is none of that name.
const Function* find_function(std::string_view name);
/// The function's name or the operator's symbol.
std::string_view name_of(Op op);

/// "; did you mean `slope`?" where one of `known` or the language's names is near to `name`, else nothing.
std::string suggestion(std::string_view name, std::span<const std::string> known);

/// ": write `&&`" for `and`, and so on for the words and symbols of Python and PyTorch that the language has another
/// word for, else nothing.
std::string instead_of(std::string_view word);

}  // namespace strobe::expression
