// SPDX-License-Identifier: Apache-2.0
// Flags that take numbers. CLI11 by itself takes the nearest number that fits, octal digits and -1 for 2^64 - 1.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace strobe::program {

/// The number that all of `text` spells in decimal, from `least` to `most` (of a float: any finite one); nothing else.
template <class T>
std::optional<T> number_of(const std::string& text, T least, T most) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) return std::nullopt;
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value >= least && value <= most ? std::optional(value) : std::nullopt;
}

namespace detail {
template <class T>
struct NumberOf {
  using Type = T;
};
template <class T>
struct NumberOf<std::optional<T>> {
  using Type = T;
};
template <class T>
struct NumberOf<std::vector<T>> {
  using Type = T;
};
}  // namespace detail

/// Adds a flag for a number, or for a list of numbers: each is one from `least` to `most`, or an error.
template <class Value, class T = typename detail::NumberOf<Value>::Type>
CLI::Option* add_number(CLI::App& command, const char* name, Value& value, const char* text,
                        std::type_identity_t<T> least = std::numeric_limits<T>::lowest(),
                        std::type_identity_t<T> most = std::numeric_limits<T>::max()) {
  const auto check = [least, most](std::string& given) -> std::string {
    const std::optional<T> number = number_of<T>(given, least, most);
    if (!number && std::is_floating_point_v<T>) return fmt::format("'{}' is not a number that float32 holds", given);
    if (!number) return fmt::format("'{}' is not an integer from {} to {}", given, least, most);
    given = fmt::format("{}", *number);  // spelled so that CLI11 reads the same number
    return {};
  };
  return command.add_option(name, value, text)->transform(CLI::Validator(check, "", ""));
}

}  // namespace strobe::program
