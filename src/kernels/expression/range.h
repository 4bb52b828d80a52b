// SPDX-License-Identifier: Apache-2.0
// What an integer or boolean of an expression may be over a tile of queries and keys: interval arithmetic. A mask that
// is false all over a tile leaves it out, one that is true all over needs no look at its elements. Plain C++ without
// std headers, shared by host and device.
//
// Reals are not followed: what depends on one may be anything.
// Source: Moore, "Interval Analysis" (1966), chapter 3.
#pragma once

#ifdef __CUDACC_RTC__
#define STROBE_SHARED __device__ __forceinline__
#else
#define STROBE_SHARED inline
#endif

namespace strobe::expression {

/// [low, high], a boolean's 0 or 1. Never empty.
struct Range {
  long long low, high;
};

STROBE_SHARED Range any_integer() { return {-2147483648LL, 2147483647LL}; }
STROBE_SHARED Range any_boolean() { return {0, 1}; }
STROBE_SHARED Range just(long long value) { return {value, value}; }
STROBE_SHARED long long least(long long a, long long b) { return a < b ? a : b; }
STROBE_SHARED long long most(long long a, long long b) { return a < b ? b : a; }
STROBE_SHARED Range from_either(Range a, Range b) { return {least(a.low, b.low), most(a.high, b.high)}; }

/// A result that wraps around may be anything.
STROBE_SHARED Range within_32_bits(Range a) {
  return a.low < any_integer().low || a.high > any_integer().high ? any_integer() : a;
}

STROBE_SHARED Range negate(Range a) { return within_32_bits({-a.high, -a.low}); }
STROBE_SHARED Range add(Range a, Range b) { return within_32_bits({a.low + b.low, a.high + b.high}); }

STROBE_SHARED Range multiply(Range a, Range b) {
  const long long products[4] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
  Range all = just(products[0]);
  for (int i = 1; i < 4; ++i) {
    all = from_either(all, just(products[i]));
  }
  return within_32_bits(all);
}

STROBE_SHARED long long floor_quotient(long long a, long long b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

STROBE_SHARED Range floor_divide(Range a, Range b) {
  if (b.low != b.high || b.low <= 0) {
    return any_integer();
  }
  return {floor_quotient(a.low, b.low), floor_quotient(a.high, b.low)};
}

STROBE_SHARED Range remainder(Range a, Range b) {
  if (b.low != b.high || b.low <= 0) {
    return any_integer();
  }
  const long long first = floor_quotient(a.low, b.low) * b.low;  // the multiple at or below `low`
  return a.high < first + b.low ? Range{a.low - first, a.high - first} : Range{0, b.low - 1};
}

STROBE_SHARED Range minimum(Range a, Range b) { return {least(a.low, b.low), least(a.high, b.high)}; }
STROBE_SHARED Range maximum(Range a, Range b) { return {most(a.low, b.low), most(a.high, b.high)}; }

STROBE_SHARED Range absolute(Range a) {
  if (a.low >= 0) {
    return a;
  }
  return within_32_bits({a.high < 0 ? -a.high : 0, most(-a.low, a.high)});
}

STROBE_SHARED Range less(Range a, Range b) { return {a.high < b.low ? 1 : 0, a.low < b.high ? 1 : 0}; }
STROBE_SHARED Range less_equal(Range a, Range b) { return {a.high <= b.low ? 1 : 0, a.low <= b.high ? 1 : 0}; }

STROBE_SHARED Range equal(Range a, Range b) {
  const bool always = a.low == a.high && b.low == b.high && a.low == b.low;
  return {always ? 1 : 0, a.low <= b.high && b.low <= a.high ? 1 : 0};
}

STROBE_SHARED Range logical_and(Range a, Range b) { return minimum(a, b); }
STROBE_SHARED Range logical_or(Range a, Range b) { return maximum(a, b); }
STROBE_SHARED Range logical_not(Range a) { return {1 - a.high, 1 - a.low}; }

STROBE_SHARED Range select(Range condition, Range yes, Range no) {
  if (condition.low == 1) {
    return yes;
  }
  return condition.high == 0 ? no : from_either(yes, no);
}

}  // namespace strobe::expression
