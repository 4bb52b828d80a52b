// SPDX-License-Identifier: Apache-2.0
// One operation on numbers, in float64: what literals fold by and the reference evaluates by.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "expression/graph.h"

namespace strobe::expression {

/// Modulo 2^32.
inline double wrapped(std::int64_t value) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(value)); }

inline std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

inline double truncated(double value) {
  if (std::isnan(value)) return 0.0;
  return std::trunc(
      std::clamp<double>(value, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()));
}

/// The value of `node`, which is neither a literal, a variable nor a load, from its operands' values; `operand_type` is
/// the type of its last one.
inline double apply(const Node& node, Type operand_type, std::span<const double> x) {
  const bool integers = operand_type != Type::real;
  const auto whole = [&](int i) { return static_cast<std::int64_t>(x[i]); };
  switch (node.op) {
    case Op::to_integer: return truncated(x[0]);
    case Op::to_real: return x[0];
    case Op::negate: return integers ? wrapped(-whole(0)) : -x[0];
    case Op::add: return integers ? wrapped(whole(0) + whole(1)) : x[0] + x[1];
    case Op::multiply: return integers ? wrapped(whole(0) * whole(1)) : x[0] * x[1];
    case Op::divide: return x[0] / x[1];
    case Op::floor_divide: return wrapped(floor_divided(whole(0), whole(1)));
    case Op::remainder: return wrapped(whole(1) == 0 ? 0 : whole(0) - floor_divided(whole(0), whole(1)) * whole(1));
    case Op::minimum: return x[1] < x[0] ? x[1] : x[0];
    case Op::maximum: return x[0] < x[1] ? x[1] : x[0];
    case Op::absolute: return integers ? wrapped(std::abs(whole(0))) : std::abs(x[0]);
    case Op::exp: return std::exp(x[0]);
    case Op::exp2: return std::exp2(x[0]);
    case Op::log: return std::log(x[0]);
    case Op::tanh: return std::tanh(x[0]);
    case Op::sigmoid: return 1.0 / (1.0 + std::exp(-x[0]));
    case Op::sqrt: return std::sqrt(x[0]);
    case Op::rsqrt: return 1.0 / std::sqrt(x[0]);
    case Op::sin: return std::sin(x[0]);
    case Op::cos: return std::cos(x[0]);
    case Op::floor: return std::floor(x[0]);
    case Op::less: return x[0] < x[1] ? 1.0 : 0.0;
    case Op::less_equal: return x[0] <= x[1] ? 1.0 : 0.0;
    case Op::equal: return x[0] == x[1] ? 1.0 : 0.0;
    case Op::logical_and: return x[0] != 0.0 && x[1] != 0.0 ? 1.0 : 0.0;
    case Op::logical_or: return x[0] != 0.0 || x[1] != 0.0 ? 1.0 : 0.0;
    case Op::logical_not: return x[0] != 0.0 ? 0.0 : 1.0;
    case Op::select: return x[0] != 0.0 ? x[1] : x[2];
    case Op::literal:
    case Op::variable:
    case Op::load: break;
  }
  return 0.0;
}

}  // namespace strobe::expression
