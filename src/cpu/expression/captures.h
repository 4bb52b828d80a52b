// SPDX-License-Identifier: Apache-2.0
// Elements of captures: reads and sums at computed indices, none outside of the tensor.
#pragma once

#include <cstdint>
#include <span>

#include "expression/graph.h"
#include "kernels/expression/range.h"
#include "strobe/tensor.h"

namespace strobe::cpu {

/// to[i] = the element at operands[0][i], operands[1][i], ..., 32-bit integers, as a float or a 32-bit integer; 0
/// outside. Memory and `count` are as run_step() has them. 64-bit integers saturate; of uint8 what is not 0 is 1.
void load_capture(const ConstTensorView& capture, int rank, const void* const* operands, void* to, std::int64_t count);

/// gradient[indices] += values[i] * derivatives[first + i] for i in [0, count): roots[0] holds the derivatives,
/// roots[1], ... the indices. Neighbours that share an element are summed in float64 first.
void add_at(const TensorView& gradient, int rank, const void* const* roots, std::int64_t first, std::int64_t count,
            const float* values);

/// What integers or booleans of a capture may be where its indices are in these ranges: looked up where they are few.
expression::Range capture_range(const ConstTensorView& capture, std::span<const expression::Range> indices,
                                expression::Type type);

}  // namespace strobe::cpu
