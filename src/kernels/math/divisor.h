// SPDX-License-Identifier: Apache-2.0
// Division by a number that only the host knows. Plain C++ without std headers, shared by host and device.
#pragma once

namespace strobe {

/// Divides numbers below 2^31 by a divisor that only the host knows, in two instructions.
/// Source: Granlund and Montgomery, "Division by invariant integers using multiplication" (1994).
struct Divisor {
  unsigned divisor, multiplier, shift;

  static constexpr Divisor of(int divisor) {
    unsigned log2 = 0;  // rounded up
    while ((1LL << log2) < divisor) ++log2;
    if (log2 == 0) return {1, 0, 0};
    const unsigned long long power = 1ULL << (31 + log2);
    return {static_cast<unsigned>(divisor), static_cast<unsigned>((power + divisor - 1) / divisor), log2 - 1};
  }

  constexpr int quotient(int value) const {
    const unsigned long long product = static_cast<unsigned long long>(static_cast<unsigned>(value)) * multiplier;
    return divisor == 1 ? value : static_cast<int>(static_cast<unsigned>(product >> 32) >> shift);
  }
  constexpr int remainder(int value) const { return value - quotient(value) * static_cast<int>(divisor); }
};

}  // namespace strobe
