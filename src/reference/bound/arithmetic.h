// SPDX-License-Identifier: Apache-2.0
// The roundings that each engine guarantees.
#pragma once

#include "reference/bound/reference.h"
#include "strobe/plan.h"

namespace strobe::reference {

/// What `engine` does to a call; P and dS are rounded to `probabilities`. `engine` is that of a plan, never automatic.
ArithmeticModel arithmetic_of(Engine engine, DType probabilities);

/// What running the plan does.
inline ArithmeticModel arithmetic_of(const Plan& plan) {
  return arithmetic_of(plan.engine(), plan.probability_dtype());
}

}  // namespace strobe::reference
