// SPDX-License-Identifier: Apache-2.0
#include "reference/bound/rounding.h"

#include <cmath>

namespace strobe::reference {
double gamma(double roundings, double unit_roundoff) {
  const double sum = roundings * unit_roundoff;
  return sum < 1.0 ? sum / (1.0 - sum) : kInfinity;
}

double weight_error(double exponent, double norm, double weight, double shift) {
  return weight > 0.0 ? weight * std::expm1(shift) : std::exp(exponent + shift) / norm;
}

double Rounding::stored_error(double value, double error) const {
  const double reach = std::fabs(value) + error;
  if (!(reach < overflow)) return kInfinity;  // also where the error is not a number
  return error + relative * reach + absolute;
}

Rounding rounding_to(DType dtype) {
  switch (dtype) {
    // 8 and 11 significant bits, rounded to nearest: half a unit in the last place is 2^-8 and 2^-11 of the value.
    case DType::bfloat16: return {0x1p-8, 0x1p-126, 0x1p128 * (1.0 - 0x1p-9)};
    case DType::float16: return {0x1p-11, 0x1p-25, 65520.0};
    default: return {0.0, 0.0, 0x1p128 * (1.0 - 0x1p-25)};  // float32 results are float32 already
  }
}

}  // namespace strobe::reference
