// SPDX-License-Identifier: Apache-2.0
// The gradient of a capture from exact sums of its elements (score/capture_terms.h). One thread an element.
#pragma once

#include "kernels/auxiliary/round_gradient_params.h"
#include "kernels/math/exact_sum.h"

namespace strobe::auxiliary {

/// Grid: elements / kRoundGradientThreads, rounded up.
__global__ void __launch_bounds__(kRoundGradientThreads)
    round_gradient(const __grid_constant__ RoundGradientParams params) {
  const long long element = static_cast<long long>(blockIdx.x) * kRoundGradientThreads + threadIdx.x;
  if (element >= params.elements) {
    return;
  }
  long long digits[kExactSumDigits];
#pragma unroll
  for (int i = 0; i < kExactSumDigits; ++i) {
    digits[i] = static_cast<long long>(params.sums[exact_sum_word(element, i)]);
  }
  const unsigned bits = rounded_exact_sum(digits, params.sums[exact_sum_word(element, kExactSumDigits)]);
  const expression::CaptureView& gradient = params.gradient;
  long long rest = element;
  long long place = 0;
#pragma unroll
  for (int axis = expression::kMostIndices - 1; axis >= 0; --axis) {
    if (axis < params.rank) {
      place += rest % gradient.shape[axis] * gradient.strides[axis];
      rest /= gradient.shape[axis];
    }
  }
  static_cast<float*>(const_cast<void*>(gradient.data))[place] = __uint_as_float(bits);
}

}  // namespace strobe::auxiliary
