// SPDX-License-Identifier: Apache-2.0
// The roundings that each engine and family of kernels guarantees.
#pragma once

#include <string_view>

#include "reference/bound/reference.h"
#include "strobe/plan.h"

namespace strobe::reference {

/// What a call's kernels do; P and dS are rounded to `probabilities`. `kernels`: as Plan::kernels() names them.
ArithmeticModel arithmetic_of(std::string_view kernels, DType probabilities);

/// What running the plan does.
inline ArithmeticModel arithmetic_of(const Plan& plan) {
  return arithmetic_of(plan.kernels(), plan.probability_dtype());
}

}  // namespace strobe::reference
