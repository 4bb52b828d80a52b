// SPDX-License-Identifier: Apache-2.0
// Sizes that are computed from what a caller gives: products and sums that cannot overflow without a word.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

namespace strobe {

/// Thrown by Checked::value(). The API makes an error of it: no caller sees it.
class SizeOverflow : public std::exception {
 public:
  const char* what() const noexcept override { return "a size does not fit in its type"; }
};

/// A size: a number of elements, bytes, tiles or tasks, from 0 to 2^63 - 1. One that does not fit, a negative number
/// among them, stays unfit through further products and sums, a product with 0 included: what sizes memory or ends a
/// loop is a product of Checked, and value() is asked last.
class Checked {
 public:
  template <std::integral T>
  constexpr Checked(T value)  // NOLINT(google-explicit-constructor): extents mix with it
      : value_(static_cast<std::int64_t>(value)), fits_(std::in_range<std::int64_t>(value) && value >= T{0}) {}

  friend constexpr Checked operator*(Checked a, Checked b) {
    Checked product = 0;
    product.fits_ = !__builtin_mul_overflow(a.value_, b.value_, &product.value_) && a.fits_ && b.fits_;
    return product;
  }

  friend constexpr Checked operator+(Checked a, Checked b) {
    Checked sum = 0;
    sum.fits_ = !__builtin_add_overflow(a.value_, b.value_, &sum.value_) && a.fits_ && b.fits_;
    return sum;
  }

  /// Rounded down; divisor > 0.
  friend constexpr Checked operator/(Checked a, std::int64_t divisor) {
    Checked quotient = a;
    quotient.value_ /= divisor;
    return quotient;
  }

  /// a / divisor, rounded up; divisor > 0.
  friend constexpr Checked ceil_div(Checked a, std::int64_t divisor) {
    Checked quotient = a;
    quotient.value_ = a.value_ / divisor + (a.value_ % divisor != 0 ? 1 : 0);
    return quotient;
  }

  /// The smallest multiple of `multiple` that is not less; multiple > 0.
  friend constexpr Checked round_up(Checked a, std::int64_t multiple) { return ceil_div(a, multiple) * multiple; }

  constexpr bool fits() const { return fits_; }

  /// Whether it fits and is `limit` at most.
  constexpr bool at_most(std::int64_t limit) const { return fits_ && value_ <= limit; }

  /// Throws SizeOverflow where it does not fit T.
  template <std::integral T = std::int64_t>
  constexpr T value() const {
    if (!fits_ || !std::in_range<T>(value_)) throw SizeOverflow();
    return static_cast<T>(value_);
  }

  constexpr std::optional<std::int64_t> value_if_fits() const { return fits_ ? std::optional(value_) : std::nullopt; }

 private:
  std::int64_t value_;
  bool fits_;
};

}  // namespace strobe
