// SPDX-License-Identifier: Apache-2.0
#include "reference/bound/arithmetic.h"

#include <numbers>
#include <string>

namespace strobe::reference {

ArithmeticModel arithmetic_of(std::string_view kernels, DType probabilities) {
  ArithmeticModel model;
  // Of 8-bit operands the bound derives the rounding from the operands themselves.
  const bool eight_bit = probabilities == DType::uint8 || probabilities == DType::float8_e4m3;
  model.probabilities = eight_bit ? DType::float32 : probabilities;
  if (kernels.empty()) {                                                    // on the CPU
    if (probabilities == DType::bfloat16) model.smallest_input = 0x1p-126;  // its units flush subnormals
    return model;
  }
  model.unit_roundoff = 0x1p-23;       // the tensor cores truncate their sums
  model.exp2_error = 0x1p-22;          // ex2.approx: 2^-22.5
  model.log_absolute_error = 0x1p-22;  // lg2.approx, where its argument is between a half and 2
  // 1 - 2 / (e^2x + 1): the quotient, up to 2, is off by 2^-24 each of the sum and of the product of two sums, which
  // share a reciprocal, by that one's 2^-23, and by the exponential's share.
  model.tanh_absolute_error = 0x1p-21;
  model.maximum_slack = 8.0 * std::numbers::ln2;  // a row's maximum is raised once a score passes it by 2^8
  model.block_n = kernels == "sm80" ? 32 : 64;    // the fewest keys of a step
  model.keep_joins_sums = true;
  if (probabilities == DType::float32) {
    // Whatever family is asked first, sm80's kernels. Of a product of two numbers in two parts of 11 bits each the low
    // parts' is missing, 2^-11 of one times 2^-10 of the other, and they have lost 2^-23 and 3 x 2^-23. The sum of
    // sixteen meets four roundings more than its products are, for the parts' own sums.
    model.product_error = 0x1p-21 + 4 * 0x1p-23 + 4 * model.unit_roundoff;
    model.block_n = 16;
    return model;
  }
  if (kernels == "sm90") {
    if (probabilities == DType::float8_e4m3) model.unit_roundoff = 0x1p-13;  // what they keep of sums of such products
    model.joining_parts = 4.0;                                               // float16's; bfloat16 has three
    model.passed_probabilities = DType::float16;  // from the warpgroup that computes P to the one that computes dS
    model.passed_scale = 0x1p12;                  // so that few are below float16's normal range
  }
  return model;
}

ArithmeticModel with_stored_operands(const ArithmeticModel& model) {
  ArithmeticModel stored = model;
  stored.stored_operands = true;
  stored.probabilities = DType::float16;
  // Products with scales: of K with a score, of V with a unit, with a probability, and of the unit with O.
  stored.product_error += 4.0 * model.unit_roundoff;
  return stored;
}

bool has_stored_operands(const Plan& plan) { return plan.explain().find("operands as float16") != std::string::npos; }

}  // namespace strobe::reference
