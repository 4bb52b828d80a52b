// SPDX-License-Identifier: Apache-2.0
// The steps of an expression's program on vectors, of the instruction set that this machine runs.
#pragma once

#include <cstdint>

#include "cpu/expression/program.h"

namespace strobe::cpu {

/// Elements that a step works on are padded to a multiple of this.
inline constexpr std::int64_t kStepMultiple = 16;

/// result[i] of the step's operation for i in [0, count), a multiple of kStepMultiple: neither variables nor loads.
/// Memory is aligned to 64 bytes and holds floats, of integers and booleans 32-bit integers.
void run_step(const ExpressionStep& step, const void* const* operands, void* result, std::int64_t count);

}  // namespace strobe::cpu
