// SPDX-License-Identifier: Apache-2.0
// The roundings that each engine and family of kernels guarantees.
#pragma once

#include <string_view>

#include "reference/bound/reference.h"
#include "strobe/plan.h"

namespace strobe::reference {

/// What a call's kernels do; P and dS are rounded to `probabilities`. `kernels`: as Plan::kernels() names them.
ArithmeticModel arithmetic_of(std::string_view kernels, DType probabilities);

/// The same of kernels whose operands are K and V in 8 bits as they are.
ArithmeticModel with_stored_operands(const ArithmeticModel& model);

/// Whether a plan is for such kernels, as its text says.
bool has_stored_operands(const Plan& plan);

/// What running the plan does.
inline ArithmeticModel arithmetic_of(const Plan& plan) {
  const ArithmeticModel model = arithmetic_of(plan.kernels(), plan.probability_dtype());
  return has_stored_operands(plan) ? with_stored_operands(model) : model;
}

}  // namespace strobe::reference
