// SPDX-License-Identifier: Apache-2.0
// Tensor maps of a bias: what TMA brings of it.
#pragma once

#include "call/problem.h"
#include "kernels/sm90/tile/tensor_map.h"
#include "runtime/tensor_map.h"

namespace strobe::sm90 {

/// Boxes of `rows` queries, or of one where all queries have the same bias, which takes a stride of 0.
BiasBoxParams bias_boxes(const AttentionProblem& problem, const ConstTensorView& bias, int rows);

/// Of an aligned bias: axes key, query, head and batch, boxes of `columns` keys.
Status encode_bias(const runtime::Driver& driver, const ConstTensorView& bias, const BiasBoxParams& boxes, int columns,
                   runtime::Swizzle swizzle, TensorMap& map);

}  // namespace strobe::sm90
