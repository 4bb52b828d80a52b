// SPDX-License-Identifier: Apache-2.0
// Sums of float32 that are exact, so that they do not depend on the order of their terms: fixed point that holds every
// float32, in digits of which each is a 64-bit integer. A term adds to two digits at most, which threads do by atomics
// of integers; carries wait until all terms are there. Plain constexpr C++, shared by host and device.
#pragma once

namespace strobe {

inline constexpr int kExactSumDigitBits = 28;
inline constexpr int kExactSumDigits = 10;  // the lowest in units of 2^-149

/// A sum's digits, and behind them flags of what it has that is no number.
inline constexpr int kExactSumWords = kExactSumDigits + 1;
inline constexpr unsigned long long kSumHasInfinity = 1;
inline constexpr unsigned long long kSumHasMinusInfinity = 2;
inline constexpr unsigned long long kSumHasNan = 4;

/// As many terms fit without a carry.
inline constexpr long long kMostTermsOfExactSum = 1LL << (63 - kExactSumDigitBits);

/// Sums lie in groups, word by word, so that neighbouring sums share sectors.
inline constexpr int kExactSumsOfGroup = 16;
constexpr long long exact_sum_word(long long sum, int word) {
  return (sum / kExactSumsOfGroup * kExactSumWords + word) * kExactSumsOfGroup + sum % kExactSumsOfGroup;
}
/// Sums that whole groups hold.
constexpr long long whole_exact_sums(long long sums) {
  return (sums + kExactSumsOfGroup - 1) / kExactSumsOfGroup * kExactSumsOfGroup;
}
inline constexpr long long kExactSumBytes = 8LL * kExactSumWords;

/// A finite float32: what it adds to digits `first` and `first` + 1; the upper of the last digit is 0.
struct ExactTerm {
  int first;
  long long lower, upper;
};

constexpr ExactTerm exact_term(unsigned bits) {
  const unsigned exponent = bits >> 23 & 0xffU;
  const unsigned mantissa = (bits & 0x7fffffU) | (exponent == 0 ? 0U : 0x800000U);
  const int place = static_cast<int>(exponent == 0 ? 0U : exponent - 1U);
  const long long wide = static_cast<long long>(mantissa) << place % kExactSumDigitBits;
  const long long lower = wide & ((1LL << kExactSumDigitBits) - 1);
  const long long upper = wide >> kExactSumDigitBits;
  const bool negative = bits >> 31 != 0;
  return {place / kExactSumDigitBits, negative ? -lower : lower, negative ? -upper : upper};
}

constexpr unsigned exact_sum_flag(unsigned bits) {
  return (bits & 0x7fffffU) != 0 ? kSumHasNan : bits >> 31 != 0 ? kSumHasMinusInfinity : kSumHasInfinity;
}

/// All digits but the last become less than 2^28 and not negative.
constexpr void carry_exact_sum(long long (&digits)[kExactSumDigits]) {
  for (int i = 0; i + 1 < kExactSumDigits; ++i) {
    const long long carried = digits[i] >> kExactSumDigitBits;
    digits[i] -= carried << kExactSumDigitBits;
    digits[i + 1] += carried;
  }
}

/// The bits of the float32 that is nearest, of two as near the even one.
constexpr unsigned rounded_exact_sum(long long (&digits)[kExactSumDigits], unsigned long long flags) {
  constexpr unsigned kInfinity = 0x7f800000U;
  constexpr unsigned kSign = 0x80000000U;
  if (flags != 0) {
    const bool one_infinity = flags == kSumHasInfinity || flags == kSumHasMinusInfinity;
    return one_infinity ? kInfinity | (flags == kSumHasMinusInfinity ? kSign : 0U) : 0x7fc00000U;
  }
  carry_exact_sum(digits);
  const bool negative = digits[kExactSumDigits - 1] < 0;
  if (negative) {
    for (long long& digit : digits) {
      digit = -digit;
    }
    carry_exact_sum(digits);
  }
  const unsigned sign = negative ? kSign : 0U;
  int highest = kExactSumDigits - 1;
  while (highest > 0 && digits[highest] == 0) {
    --highest;
  }
  if (digits[highest] >> kExactSumDigitBits != 0) {
    return sign | kInfinity;  // only the last one may be so large
  }
  const int lowest = highest > 0 ? highest - 1 : 0;
  unsigned long long wide = static_cast<unsigned long long>(digits[highest]);
  if (highest > 0) {
    wide = wide << kExactSumDigitBits | static_cast<unsigned long long>(digits[lowest]);
  }
  bool more = false;  // below
  for (int i = 0; i < lowest; ++i) {
    more = more || digits[i] != 0;
  }
  int shift = 0;
  while (wide >> shift >= 1ULL << 24) {
    ++shift;
  }
  unsigned mantissa = static_cast<unsigned>(wide >> shift);
  if (shift > 0) {
    const unsigned long long half = 1ULL << (shift - 1);
    const unsigned long long rest = wide & (2 * half - 1);
    mantissa += rest > half || (rest == half && (more || mantissa % 2 != 0)) ? 1U : 0U;
  }
  const unsigned place = static_cast<unsigned>(kExactSumDigitBits * lowest + shift);
  const unsigned bits = (place << 23) + mantissa;  // the mantissa's highest bit, or its carry, counts the exponent up
  return sign | (bits < kInfinity ? bits : kInfinity);
}

}  // namespace strobe
