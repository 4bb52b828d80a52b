// SPDX-License-Identifier: Apache-2.0
// The logarithm of a row's sum of exponentials.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/ptx/arithmetic.h"

namespace strobe::score {

// The largest finite number: where the maximum of a row's exponents is it, the score's product was larger
// (OnlineSoftmax::raise_maximum()).
constexpr float kLargestFinite = __builtin_bit_cast(float, 0x7f7fffffU);

/// The natural logarithm of a sum of exponentials that are relative to a maximum in powers of two; -inf of none.
__device__ __forceinline__ float lse_of(float max_log2, float sum) {
  if (fabsf(max_log2) == kLargestFinite) {
    return max_log2;
  }
  return sum == 0.0F ? kMinusInfinity : (max_log2 + ptx::lg2_approx(sum)) * kLn2;
}

}  // namespace strobe::score
