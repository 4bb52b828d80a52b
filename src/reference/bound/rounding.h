// SPDX-License-Identifier: Apache-2.0
// The roundings that the error bound is made of. Source: Higham, "Accuracy and Stability of Numerical Algorithms",
// 2nd edition, chapter 3.
#pragma once

#include <limits>

#include "strobe/tensor.h"

namespace strobe::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A value and the bound on its error.
struct Bounded {
  double value = 0.0;
  double error = 0.0;
};

/// gamma_n = n u / (1 - n u): no n roundings in a row, in any order, change a value by more than this share of it.
/// Infinite where n u reaches 1.
double gamma(double roundings, double unit_roundoff);

/// How far exp(exponent) / norm rises when the exponent does by `shift`. `weight` is exp(exponent) / norm; where it is
/// 0, the exponent lies far below what a double holds, but not so far that any shift could be left out.
double weight_error(double exponent, double norm, double weight, double shift);

/// What rounding a float32 result to a storage dtype does to it.
struct Rounding {
  double relative = 0.0;
  double absolute = 0.0;  // below the smallest normal number
  double overflow = 0.0;  // magnitudes from here on become infinite

  /// The error of a stored value, given the error before it is stored; infinite where it may overflow.
  double stored_error(double value, double error) const;
};

Rounding rounding_to(DType dtype);

}  // namespace strobe::reference
