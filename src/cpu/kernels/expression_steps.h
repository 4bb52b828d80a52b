// SPDX-License-Identifier: Apache-2.0
// The steps of an expression's program on vectors, of the instruction set that this machine runs.
#pragma once

#include <array>
#include <cstdint>

#include "cpu/expression/program.h"
#include "strobe/tensor.h"

namespace strobe::cpu {

/// Elements that a step works on are padded to a multiple of this.
inline constexpr std::int64_t kStepMultiple = 16;

/// result[i] of the step's operation for i in [0, count), a multiple of kStepMultiple: neither variables nor loads.
/// Memory is aligned to 64 bytes and holds floats, of integers and booleans 32-bit integers.
void run_step(const ExpressionStep& step, const void* const* operands, void* result, std::int64_t count);

/// A capture of 32-bit elements that has some, and whose offsets are below 2^31.
struct GatheredCapture {
  const void* data = nullptr;
  int rank = 0;
  std::array<std::int32_t, kMaxRank> extents{};
  std::array<std::int32_t, kMaxRank> strides{};
};

/// result[i] = the element at operands[0][i], operands[1][i], ..., 32-bit integers; 0 outside. As run_step().
void gather(const GatheredCapture& capture, const void* const* operands, void* result, std::int64_t count);

}  // namespace strobe::cpu
