// SPDX-License-Identifier: Apache-2.0
// 8-bit operands: what they stand for, in float64, and what rounding probabilities to 8 bits may change.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/bound/forward_row.h"
#include "reference/bound/scores.h"

namespace strobe::reference {

/// The operands of one query head of one sequence.
struct HeadOperands {
  std::int64_t head_dim = 0;
  std::vector<double> q;             // [seqlen_q, head_dim]
  std::vector<double> k_transposed;  // [head_dim, seqlen_k]
  std::vector<double> v;             // [seqlen_k, head_dim_v]
  std::vector<double> value_scales;  // 8-bit: [seqlen_k]
};

/// Elements times scales. Q and K have a column more, the shift of a query and 1: so is it part of their product.
HeadOperands eight_bit_operands(const ForwardArguments& arguments, const Head& head);

/// Rows of K or V of one key head stored in 8 bits: products with their scales, rounded to float32 and then to `dtype`;
/// or exact ones, where they are operands as they are.
std::vector<double> stored_rows(const ConstTensorView& view, const ConstTensorView& scales, const Head& head,
                                std::int64_t head_kv, DType dtype);

/// The scales of a key head's rows.
std::vector<double> stored_scales(const ConstTensorView& view, const ConstTensorView& scales, const Head& head,
                                  std::int64_t head_kv);

/// Of operands as they are: what rounding probabilities to float16 loses below its normal range, since scales of V join
/// them relative to the largest.
void round_small_probabilities(Scores& scores, const std::vector<double>& value_scales);

/// Adds what the arithmetic of 8-bit operands does to a row's scores and probabilities.
void round_probabilities(Scores& scores, const HeadOperands& operands, DType element, const ArithmeticModel& model);

/// A row of rotated O in float32 -> as it is stored in `output`.
void rotate_back(ForwardRow& row, const Rotation& rotation, DType output, const ArithmeticModel& model);

}  // namespace strobe::reference
