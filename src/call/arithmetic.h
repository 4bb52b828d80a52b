// SPDX-License-Identifier: Apache-2.0
// Rounding of integers: how many tiles cover a length, and how long their padding makes it.
#pragma once

#include <concepts>
#include <type_traits>

namespace strobe {

/// value / divisor, rounded up; value >= 0, divisor > 0.
template <std::integral T>
constexpr T ceil_div(T value, std::type_identity_t<T> divisor) {
  return (value + divisor - 1) / divisor;
}

/// The smallest multiple of `multiple` that is not less than `value`; value >= 0, multiple > 0.
template <std::integral T>
constexpr T round_up(T value, std::type_identity_t<T> multiple) {
  return ceil_div(value, multiple) * multiple;
}

/// The largest multiple of `multiple` that is not more than `value`; value >= 0, multiple > 0.
template <std::integral T>
constexpr T round_down(T value, std::type_identity_t<T> multiple) {
  return value / multiple * multiple;
}

}  // namespace strobe
