// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>
#include <random>

namespace strobe::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : bits_(seed) {}

  /// Uniform in [first, last].
  std::int64_t integer(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(last - first + 1));
  }

  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(bits_() >> 11U) * 0x1p-53; }

  bool chance(double probability) { return uniform() < probability; }

  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }

  /// N(0, 1), by the method of Box and Muller.
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  std::mt19937_64 bits_;
};

}  // namespace strobe::test
